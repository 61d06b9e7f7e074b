"""Placers: what decides which op runs on which device. One file each; :mod:`~placeit.placers.registry` finds them by name."""

from __future__ import annotations

from placeit.core.problem import CostFunction
from placeit.placers.api import place
from placeit.placers.base import Placer, option
from placeit.placers.registry import PlacerOption, get_placer, parse_placer, placer_names, placer_options

__all__ = [
    "CostFunction",
    "Placer",
    "PlacerOption",
    "get_placer",
    "option",
    "parse_placer",
    "place",
    "placer_names",
    "placer_options",
]
