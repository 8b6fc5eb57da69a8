"""Corpora that come with the library, made by its own code."""
