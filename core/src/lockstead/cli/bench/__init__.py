"""The subcommand `bench`: what a lock costs on a store in place, beside the fewest requests that could do it."""
