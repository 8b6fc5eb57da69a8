"""Costs of models, computed from their configurations: parameters, FLOPs, bytes."""
