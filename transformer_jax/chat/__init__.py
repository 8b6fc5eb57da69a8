"""Conversations with language models: templates, messages, tokens, and a cache between turns."""
