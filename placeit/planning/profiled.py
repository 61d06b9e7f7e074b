"""The circumstances in which the costs of groups were measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

__all__ = ["Profiled"]

_DISTURBED = 0.15  # share by which a model's times vary on a machine that is busy with something else


@dataclass(frozen=True)
class Profiled:
    """The circumstances in which costs were measured: when, and on how busy a machine.

    Attributes:
        at: time of the measurement, seconds since 1970.
        load: mean number of cores that other processes kept busy during profiling; None if unknown.
        cached: whether the costs were read from the cache.
        cut: number of groups that were measured cut off from their neighbours; the cut costs of others are predicted from them.
        groups: number of groups that compute something.
        error: mean error of the cut cost of a measured group when it is predicted from the other measured groups, as a share of
            the group's time; None if all groups were measured, or too few.
        spread: variation of the whole model's seconds on the device where they varied most: the upper end of their 95 %
            interval divided by the lower end, minus 1; 0 if no device runs the whole model.
        blocks: number of blocks of runs that were measured.
        disturbed_blocks: number of blocks that other processes disturbed, even when repeated.
        unsure: whether some costs are from disturbed blocks, for lack of others; such costs use the faster blocks.
    """

    at: float
    load: float | None
    cached: bool
    cut: int
    groups: int
    error: float | None
    spread: float
    blocks: int = 0
    disturbed_blocks: int = 0
    unsure: bool = False

    @property
    def disturbed(self) -> bool:
        """True if too few blocks were undisturbed, or times varied so much that something else must have used the machine."""
        return self.unsure or self.spread > _DISTURBED

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        return {
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds"),
            "age_s": max(0.0, time.time() - self.at),
            "other_load_cores": self.load,
            "cached": self.cached,
            "cut_groups": self.cut,
            "groups": self.groups,
            "predicted_cut_error": self.error,
            "spread": self.spread,
            "blocks": self.blocks,
            "disturbed_blocks": self.disturbed_blocks,
            "unsure": self.unsure,
        }
