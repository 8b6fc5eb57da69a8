"""Text to batches: sources, tokenizers, stores of ids, batch plans and a loader. No JAX here."""
