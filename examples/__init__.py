"""Programs that show the library at work; each runs by itself. Those at the top are to copy."""
