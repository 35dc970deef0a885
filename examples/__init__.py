"""Programs that show the library at work; each runs by itself."""
