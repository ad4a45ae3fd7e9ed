"""What survives: saving, verifying, loading, exporting."""
