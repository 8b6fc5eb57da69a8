"""Using trained encoders: vectors, masked tokens, classes, tags and answers of texts."""
