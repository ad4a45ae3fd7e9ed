"""Where things lie when nothing else is said."""

DEFAULT_STORE = "relay-store"
"""Store of runs, datasets and final models: a folder where the command is run."""
