"""Results of profiling a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placeit.core.views import Shown
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs
from placeit.runtime.compiling import Compiled

__all__ = ["ProfileReport"]


@dataclass(frozen=True, eq=False)
class ProfileReport(Shown):
    """Results of profiling a model.

    Attributes:
        model: its path.
        precision: in which devices computed.
        grouping: its ops in groups.
        costs: what these cost on the devices.
        compiling: programs that were compiled, by kind of device.
    """

    model: str
    precision: str
    grouping: Grouping
    costs: Costs
    compiling: Mapping[str, Compiled]
