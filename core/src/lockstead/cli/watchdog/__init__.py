"""The process beside a section that ends it in time, whatever becomes of `lockstead run`."""
