"""Other nodes: the Ray cluster that the process is connected to, and one on this machine for a first try.

May import ``devices`` and ``core``; what looks for devices knows of :mod:`~placeit.devices.other_nodes` alone. Read
:mod:`~placeit.devices.nodes.connection` first.
"""
