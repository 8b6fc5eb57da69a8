"""From logits to sequences: greedy, sampled, by beam, and by exhaustive search."""
