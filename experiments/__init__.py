"""Training and evaluation from the command line: one entry point per family of models."""
