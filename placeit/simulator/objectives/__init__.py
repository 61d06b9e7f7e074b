"""Objectives of searches, one file each, which :mod:`~placeit.simulator.objectives.registry` finds by name.

Read :mod:`~placeit.simulator.objectives.base` first.
"""
