"""Families of the sweep: each module here is found by itself."""
