"""Plans of runs: memory and programs on devices that need not be present."""
