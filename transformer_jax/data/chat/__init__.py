"""Conversations as data: templates, rendered text, and token ids with answers marked."""
