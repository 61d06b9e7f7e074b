"""Devices that run segments on the host, the protocols that all devices have, and the base class of kinds of devices.

May import what ``runtime`` may, and no executor. Read :mod:`~placeit.runtime.devices.base` first, then
:mod:`~placeit.runtime.devices.kinds`, which finds the kind of a device.
"""
