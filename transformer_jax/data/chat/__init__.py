"""Conversations as data: templates, rendered text, and token ids of which some are answers."""
