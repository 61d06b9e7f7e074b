"""Options of sessions, in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placeit.backends.base import Arrays
from placeit.runtime.check import check_tolerance

__all__ = ["Constraints", "Inputs"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a model is given: values, or only sizes where the model leaves them open.

    Attributes:
        arrays: by name, what the model is measured and checked on, if its time or validity depends on values; None for random
            inputs. Costs are kept for each of them apart.
        shapes: sizes by input name.
        batch: first size of every input that leaves it open. Sizes that neither gives are those of ``arrays``.
    """

    arrays: Arrays | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    batch: int | None = None

    @classmethod
    def of(cls, given: Inputs | Arrays | None) -> Inputs:
        """Return inputs, or arrays by name, as inputs."""
        return given if isinstance(given, Inputs) else cls(given)


@dataclass(frozen=True)
class Constraints:
    """What every placement has to keep to.

    Attributes:
        pins: device names by op names or globs of them (``{"conv1*": "CPU@0"}``). An op takes along those of its group; a group
            whose ops are pinned to several devices is split.
        memory: most memory by device name, in bytes or with a unit (``{"CPU@0": "2 GB"}``); less than the device has.
        max_groups: most groups that placers decide about.
        tolerance: largest ``OutputDifference.max_rel`` of outputs that are right; None for 0.001 in float32, 0.02 in float16
            and 0.1 in bfloat16, by the coarsest type of the precision, of the model's tensors, and of what is sent between
            nodes (0.1 for int8), and for quantised models :func:`placeit.runtime.check.tolerance_of_rounding` more.

    Raises:
        UsageError: the tolerance is negative or not a number.
    """

    pins: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, float | str] = field(default_factory=dict)
    max_groups: int = 96
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)
