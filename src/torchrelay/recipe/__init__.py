"""The one declarative file: schema, loading, checks."""
