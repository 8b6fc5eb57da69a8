"""Using trained encoders: vectors, hidden words, classes, tags and answers of texts."""
