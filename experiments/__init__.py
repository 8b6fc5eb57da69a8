"""Training and measuring from the command line: one entry point for each family of models."""
