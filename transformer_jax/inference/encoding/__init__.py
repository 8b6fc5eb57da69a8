"""Use of trained encoders: vectors, masked tokens, classes, tags and answers."""
