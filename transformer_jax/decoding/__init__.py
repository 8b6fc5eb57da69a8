"""From logits to sequences: greedy search, sampling, beam search and exhaustive search."""
