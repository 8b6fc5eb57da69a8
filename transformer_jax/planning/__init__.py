"""Plans of runs: what they need of devices that need not be there, before anything is begun."""
