"""The loop."""
