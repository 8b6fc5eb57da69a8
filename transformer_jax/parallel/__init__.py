"""Meshes of devices and processes, and where every array lives on them."""
