"""HTTP only: bytes in, a job; a job, bytes out. Knows Flask."""
