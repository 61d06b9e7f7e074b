"""Kinds of devices of which the host drives some and streams drive others.

They choose between :mod:`placeit.runtime.devices` and :mod:`placeit.runtime.accelerators`, and may import all of the runtime.
No module imports them: the table in :mod:`placeit.runtime.devices.kinds`, which is what to read first, names them.
"""
