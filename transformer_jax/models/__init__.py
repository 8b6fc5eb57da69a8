"""Models that users instantiate, built of ``modules``."""
