"""The installed command ``transformer-jax``: one file for each sub-command.

Arguments are checked before slow imports.
"""
