"""Placers: algorithms that assign ops to devices. Each has its own file, and :mod:`~placeit.placers.registry` finds it by name.

This package may import ``planning``, ``simulator`` and ``core``: a placer sees a problem and a cost function. Read
:mod:`~placeit.placers.base` first.
"""

from __future__ import annotations

from placeit.core.problem import CostFunction
from placeit.placers.api import place
from placeit.placers.base import Measured, Placer, RefiningPlacer, option
from placeit.placers.registry import PlacerOption, get_placer, parse_placer, placer_names, placer_options

__all__ = [
    "CostFunction",
    "Measured",
    "Placer",
    "PlacerOption",
    "RefiningPlacer",
    "get_placer",
    "option",
    "parse_placer",
    "place",
    "placer_names",
    "placer_options",
]
