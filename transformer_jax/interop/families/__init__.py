"""One file for each family of published models: its names, and its configuration both ways."""
