"""Several processes of one command: on this machine, or by the file that a cluster takes."""
