"""Deterministic samples from versioned datasets."""
