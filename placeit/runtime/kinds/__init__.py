"""Kinds of devices, one in each file: how devices are found, named and opened, and which models they run.

Kinds are subclasses of :class:`placeit.runtime.devices.kinds.DeviceKind`; read that first. They may import all of the runtime:
devices that the host drives (:mod:`placeit.runtime.devices`), streams, and nodes. No module imports them. They are loaded
through the tables in :mod:`placeit.devices.kinds`, like the kinds of plug-ins through their entry points.
"""
