"""What makes the pure protocol run: clock, drivers, the keeper's threads, forks, interrupts."""
