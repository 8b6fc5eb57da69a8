"""Starting a command as several processes: on this machine, or by a file for a cluster."""
