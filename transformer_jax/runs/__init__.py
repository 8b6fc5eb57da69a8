"""Training runs: their settings, the named ones, and how they begin, resume and are scored."""
