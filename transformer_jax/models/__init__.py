"""What a user instantiates: whole models, built of ``modules``."""
