"""Other programs' locks, other languages, other versions."""
