"""Devices that run segments, one kind per file, and the protocols that all of them have.

May import what ``runtime`` may, and no executor. Read :mod:`~placeit.runtime.devices.base` first, then
:mod:`~placeit.runtime.devices.kinds`, which finds the file of a kind.
"""
