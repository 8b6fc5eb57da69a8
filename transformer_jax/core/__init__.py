"""Foundations of all other packages: errors, declared settings, files, processes, keys."""
