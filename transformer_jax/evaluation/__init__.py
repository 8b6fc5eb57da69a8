"""Scores that say how they were made."""
