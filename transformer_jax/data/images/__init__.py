"""Pictures: where they come from, decoding, transforms, stores and batches."""
