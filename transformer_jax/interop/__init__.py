"""Hugging Face checkpoints, read and written: tensors, tokenizers, model families."""
