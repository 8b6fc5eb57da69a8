"""The installed command ``transformer-jax``: one file for each sub-command.

Slow imports come after the arguments are checked.
"""
