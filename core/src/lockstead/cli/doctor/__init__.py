"""The subcommand `doctor`: what is asked of a store, what its answers show, and how that is told."""
