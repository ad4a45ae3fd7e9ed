"""What happened: the run directory, its journal, and who reads it."""
