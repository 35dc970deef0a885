"""The subcommand `doctor`: the requests to a store, the conclusions from its replies, and the output."""
