"""The subcommand `bench`: measures what a lock costs on a store, compared with the bare requests."""
