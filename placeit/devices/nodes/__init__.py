"""Other nodes: the Ray cluster that the process is connected to, and one on this machine for a first try."""
