"""Models of all families, their configurations, and the layers of which they consist."""
