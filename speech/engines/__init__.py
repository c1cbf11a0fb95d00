"""One file per engine; each imports its model's runtime in `load` and nowhere else."""
