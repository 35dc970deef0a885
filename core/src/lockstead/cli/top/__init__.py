"""The command `lockstead top`: the locks of stores as a live table in the terminal."""
