"""Meshes of devices and processes, and the placement of arrays on them."""
