"""The installed command ``transformer-jax``: one file for each sub-command.

Nothing here is imported that takes long before the arguments are known to be right.
"""
