"""What was asked, how far it is, and who is told. Knows SQL."""
