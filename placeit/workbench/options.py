"""Options of sessions, in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.errors import UsageError
from placeit.core.sizes import SizeRange
from placeit.measuring.check import check_tolerance
from placeit.measuring.measure import Watching
from placeit.profiler.machine_load import Watch
from placeit.serving.server import QUEUE
from placeit.simulator.load import arrival_times, check_rate

__all__ = ["Constraints", "Inputs", "Policy", "Traffic"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a model: values, or only sizes where the model leaves them open.

    Attributes:
        arrays: inputs by name that the model is measured and checked on, if its time or outputs depend on values; None for
            random inputs. Costs are kept for each set of inputs separately.
        shapes: sizes by input name; a range (``"32..512@128"``) stays open: the model runs at any size in it.
        batch: first size of every input that leaves it open. Sizes that neither ``shapes`` nor ``batch`` gives are the sizes
            of ``arrays``.
        state: outputs that become the state of inputs, by input; ``"none"`` to keep caches as inputs and outputs; None to find
            them by name (``past_key_values.0.key``).
        context: tokens of the longest text of a decoder, which stand for the shapes of all its inputs.
        logits: tokens of a step whose logits a decoder with state computes: of the ``"last"`` one, or of ``"all"``.

    Raises:
        UsageError: the arrays have no names.
    """

    arrays: Arrays | None = None
    shapes: Mapping[str, Sequence[int | str | SizeRange]] | None = None
    batch: int | None = None
    state: Mapping[str, str] | Literal["none"] | None = None
    logits: Literal["last", "all"] = "last"
    context: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.arrays, Mapping | None):
            raise UsageError(
                f"'inputs' are arrays by name, as in inputs={{'x': x}}, or placeit.Inputs; got {type(self.arrays).__name__}. "
                "The arguments of a call of a PyTorch module are 'example'."
            )

    @classmethod
    def of(cls, given: Inputs | Arrays | None) -> Inputs:
        """Return :class:`Inputs` for inputs, or for arrays by name."""
        return given if isinstance(given, Inputs) else cls(given)


@dataclass(frozen=True)
class Constraints:
    """Rules that every placement has to follow.

    Attributes:
        pins: device names by op names or globs of them (``{"conv1*": "CPU@0"}``). An op takes along the other ops of its group;
            a group whose ops are pinned to several devices is split.
        memory: memory limits by device name, in bytes or with a unit (``{"CPU@0": "2 GB"}``); less than the device has.
        max_groups: maximum number of groups that placers decide about.
        texts: texts of a decoder's longest length, for whose states every placement has room beside the weights.
        tolerance: largest ``OutputDifference.max_rel`` of outputs that are right; None for 0.001 in float32, 0.02 in float16
            and 0.1 in bfloat16, by the coarsest type of the precision, of the model's tensors, and of tensors sent between
            nodes (0.1 for int8), and for quantised models :func:`placeit.measuring.check.tolerance_of_rounding` more.

    Raises:
        UsageError: the tolerance is negative or not a number.
    """

    pins: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, float | str] = field(default_factory=dict)
    max_groups: int = 96
    tolerance: float | None = None
    texts: int = 1

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)


@dataclass(frozen=True)
class Policy:
    """Guards against misleading measurements.

    Attributes:
        watch: returns a monitor that detects blocks of a profile, and rounds of a race, that other work on the machine
            disturbs; these are repeated. :class:`placeit.profiler.passes.Calm` detects none.
        check_costs: whether a search first compares costs from the cache with a few runs of the whole model, and measures them
            again if they no longer hold.
        stop_early: whether a search considers no splits if a lower bound shows that none is faster than a plain device.
    """

    watch: Callable[[], Watching] = Watch
    check_costs: bool = True
    stop_early: bool = True


@dataclass(frozen=True)
class Traffic:
    """Traffic of a server: the number of requests, and how they arrive.

    Attributes:
        rate: requests per second that arrive, whether or not those before them have ended; None to keep the maximum
            number of requests in flight: each is submitted when another one has ended.
        requests: number of requests that arrive; None for as many as arrive within ``seconds``.
        seconds: time in which requests arrive, if ``requests`` is None.
        arrivals: how requests arrive at a rate: ``constant``, at regular intervals, or ``poisson``, independently of each
            other.
        seed: of ``poisson`` arrivals.
        queue: maximum number of requests that may wait; requests that arrive at a rate and find the queue full are dropped.

    Raises:
        UsageError: a rate, a number or a time is not positive, or ``arrivals`` is unknown.
    """

    rate: float | None = None
    requests: int | None = None
    seconds: float = 10.0
    arrivals: str = "constant"
    seed: int = 0
    queue: int = QUEUE

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"Requests have to arrive for some time; got {self.seconds} seconds.")
        if self.requests is not None and self.requests < 1:
            raise UsageError(f"'requests' is {self.requests}; it must be at least 1.")
        if self.rate is not None:
            check_rate(self.rate)
            arrival_times(self.arrivals, self.rate, 1, seed=self.seed)

    @property
    def until(self) -> float:
        """Seconds after which no more requests are submitted if there is no rate; infinite if their number is given."""
        return self.seconds if self.requests is None else math.inf

    def times(self) -> NDArray[np.float64] | None:
        """Return the seconds from the first arrival to each arrival, ``float64[R]``; None if there is no rate."""
        if self.rate is None:
            return None
        requests = max(1, math.ceil(self.rate * self.seconds)) if self.requests is None else self.requests
        return arrival_times(self.arrivals, self.rate, requests, seed=self.seed)
