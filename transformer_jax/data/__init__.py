"""Text to batches: sources, tokenizers, stores of ids, plans of batches, a loader. No JAX here."""
