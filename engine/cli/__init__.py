"""The command line: one module per group of commands, loaded when a command is called."""
