"""Pure functions of arrays: the mathematics, without parameters, meshes, files or text."""
