"""The command line: one module a group of commands, loaded when the command is asked for."""
