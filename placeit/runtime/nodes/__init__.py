"""Devices of other nodes: an actor for each, which runs segments by itself, and sockets between them.

May import ``runtime/devices``, the slots of executors and ``devices/nodes``. Read ``docs/nodes.md`` first, then
:mod:`~placeit.runtime.nodes.device`, which is the end in this process, and :mod:`~placeit.runtime.nodes.lane`, which is the end
on the node.
"""
