"""Other nodes: the Ray cluster that the process is connected to, and a local one for a first try.

May import ``devices`` and ``core``. Discovery of devices depends on :mod:`~placeit.devices.other_nodes` alone. Read
:mod:`~placeit.devices.nodes.connection` first.
"""
