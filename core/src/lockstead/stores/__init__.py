"""The stores: each its own file, none knows another. `port` is what all of them implement."""
