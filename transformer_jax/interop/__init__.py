"""Published checkpoints in and out: their tensors, their vocabularies, their families."""
