"""Models of all families, their configurations, and the layers they consist of."""
