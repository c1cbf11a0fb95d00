"""Text to chunks to samples to encoded audio. Knows nothing of jobs, queues or buckets."""
