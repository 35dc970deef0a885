"""The command `lockstead`: one file per subcommand, each for a person or a script. Nothing imports it."""
