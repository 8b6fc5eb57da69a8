"""One file for each family of Hugging Face models: its names, and its configuration both ways."""
