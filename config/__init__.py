"""Settings, read once at the entry points."""
