"""One file for each kind of device: how its devices are found and named, which models they take, and how they are opened.

Kinds are subclasses of :class:`placeit.runtime.devices.kinds.DeviceKind`, which is what to read first. They may import all of
the runtime: devices that the host drives (:mod:`placeit.runtime.devices`), streams, and nodes. No module imports them: they are
loaded through the tables in :mod:`placeit.devices.kinds`, as plug-ins' kinds are through their entry points.
"""
