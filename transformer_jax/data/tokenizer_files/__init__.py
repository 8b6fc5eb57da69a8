"""Tokenizer files, which may come from anybody: limits on their parts, and opening within them."""
