"""The training step as a pure function, and all that carries it through a run."""
