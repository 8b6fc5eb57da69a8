"""Training runs: directories, checkpoints, manifests, locks, metrics and verification."""
