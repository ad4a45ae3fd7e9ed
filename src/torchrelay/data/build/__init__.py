"""Making versions of datasets from what people have."""
