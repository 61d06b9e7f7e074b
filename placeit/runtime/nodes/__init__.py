"""Devices of other nodes: an actor for each, which runs segments by itself, and sockets between them. See ``docs/nodes.md``."""
