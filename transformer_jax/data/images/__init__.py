"""Pictures: sources, decoding, transforms, stores and batches."""
