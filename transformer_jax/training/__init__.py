"""Training: the step as a pure function, the loop, checkpoints and the trainer."""
