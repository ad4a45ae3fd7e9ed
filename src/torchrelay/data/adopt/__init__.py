"""Manifests for data that other libraries wrote; not one byte of it is changed."""
