"""Bytes by key, anywhere."""
