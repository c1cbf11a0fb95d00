"""The `voxfleet` command."""
