"""Bytes under a key, for a while. Knows S3; not what the bytes are."""
