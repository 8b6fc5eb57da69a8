"""The Transformer, in two files: its layers, and the models made of them."""
