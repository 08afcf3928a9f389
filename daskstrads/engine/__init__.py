"""The contract of a program and the one loop that runs every program."""
