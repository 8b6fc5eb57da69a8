"""Reads and writes Hugging Face checkpoints: tensors, tokenizers, model families."""
