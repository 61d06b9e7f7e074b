"""Dynamic batching: the most rows that a server runs as one, by measured times, and the choice of requests.

A batch is right if each row of the outputs depends on the same row of the inputs alone. Shapes cannot show this, so batches are
compared with single requests: when a server starts, and at times while it serves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, TensorSpec
from placeit.core.errors import PlaceitError
from placeit.measuring.check import OutputDifference
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.answers import Outputs, Pending
from placeit.serving.padding import Padding

__all__ = ["Batch", "Batches", "Joining", "Probe", "Prober", "best_size", "rows_of", "why_fixed"]

_GROW_S = 2.0  # seconds after which no larger batch is tried
_SWEEP_S = 0.5  # seconds of timed runs, beyond the fewest rounds
_ROUNDS = (5, 30)  # fewest and most rounds; each runs every size once
_CLOSE = 1.05  # of the least time per row: the smallest batch within it is the best, as it takes less time as a whole
_GAIN = 0.9  # of the time per row of a single request, above which requests are not joined
_PROBE_EVERY = 100  # batches, of which the first is compared with a single request


@dataclass(frozen=True)
class Batches:
    """The batches of an executor.

    Attributes:
        most: most rows of a batch; 0 if requests are not joined.
        seconds: measured median seconds of a run, by the number of its rows.
        why: why requests are not joined; None if they are.
        padding: how requests of different lengths are joined; None if they are not.
    """

    most: int = 0
    seconds: Mapping[int, float] = field(default_factory=dict)
    why: str | None = None
    padding: Padding | None = None


@dataclass(frozen=True)
class Joining:
    """Rules by which a server joins requests.

    Args:
        samples: two different inputs, by name, with the same shapes, of a model whose batch size is open (:func:`why_fixed`).
        tolerance: largest relative difference of right outputs.
        most: most rows of a batch; None for the number that is measured to be best on each executor.
        delay_s: seconds that a request may wait for others while a device is free.
        padding: how requests of different lengths are joined, on executors where that is right; None for not at all.
    """

    samples: tuple[Arrays, Arrays]
    tolerance: float
    most: int | None = None
    delay_s: float = 0.0
    padding: Padding | None = None

    def on(self, executor: PlanExecutor) -> Batches:
        """Run batches of 1, 2, 4 ... requests on an idle executor, compare their outputs, and return the best size.

        The best size is the smallest whose time per row is at most 5 % above the least; requests are joined if it is below 0.9
        of the time per row of a single request. Times per row are compared in rounds that run each size once.
        """
        if executor.by_size:
            return Batches(why="a device compiles a program for each batch size")
        rows = rows_of(self.samples[0])[0]
        largest = min(limits[0][1] for spec in executor.inputs.values() if (limits := spec.limits) is not None)
        most = largest if self.most is None else min(self.most, largest)
        if most < 2 * rows:
            return Batches(why=f"two requests of {rows} rows are more than the {most} that a batch may have")
        try:
            sweep = _Sweep(executor, self.samples, self.tolerance, rows)
            found = sweep.best(most // rows, measured=self.most is None)
            return replace(found, padding=self.padding if found.most and sweep.pads(self.padding) else None)
        except (PlaceitError, MemoryError) as error:
            return Batches(why=f"batches cannot be run: {error}")


class _Sweep:
    """Runs of batches on an executor; sizes are numbers of requests."""

    def __init__(self, executor: PlanExecutor, samples: tuple[Arrays, Arrays], tolerance: float, rows: int) -> None:
        self._executor, self._tolerance, self._rows = executor, tolerance, rows
        self._samples = samples
        self._single = [executor.run(one) for one in self._samples]
        self._inputs: dict[int, Arrays] = {1: self._samples[0]}

    def best(self, most: int, *, measured: bool) -> Batches:
        """Return the best size up to ``most``; or ``most`` itself unless it is to be ``measured``."""
        if (why := self._wrong(2)) is not None:
            return Batches(why=why)
        if not measured:
            why = self._wrong(most)
            return Batches(most * self._rows) if why is None else Batches(why=why)
        sizes = self._grown(most)
        rounds = self._rounds(sizes)
        seconds = {size * self._rows: statistics.median(one[size] for one in rounds) for size in sizes}
        chosen, share = best_size(rounds)
        if chosen == 1:
            why = f"in a batch, a request takes {share:.2f} of its time alone, which has to be at most {_GAIN}"
            return Batches(0, seconds, why)
        return Batches(chosen * self._rows, seconds)

    def pads(self, padding: Padding | None) -> bool:
        """Return whether joined requests of different lengths have the same outputs as single requests."""
        length = next(iter(self._samples[0].values())).shape[1] if padding is not None else 0
        shorter = length - max(1, length // 4)
        if padding is None or shorter < padding.least:
            return False
        cut = [{name: value[:, :shorter] for name, value in one.items()} for one in self._samples]
        for longer, other in ((self._samples[0], cut[1]), (self._samples[1], cut[0])):
            batch = Batch([Pending(one, math.inf, rows=self._rows) for one in (longer, other)], padding)
            parts = batch.divided(self._executor.run(batch.inputs))
            singles = (self._executor.run(longer), self._executor.run(other))
            if parts is None or any(
                _difference(part, single, self._tolerance) for part, single in zip(parts, singles, strict=True)
            ):
                return False
        return True

    def _grown(self, most: int) -> list[int]:
        """Return the sizes to time: doubled while the time per row falls, batches are right, and there is time and memory."""
        begin, sizes, each = perf_counter(), [1], [self._timed(1)]
        while 2 * sizes[-1] <= most and perf_counter() - begin < _GROW_S:
            size = 2 * sizes[-1]
            try:
                if self._wrong(size) is not None:
                    break
                each.append(self._timed(size) / size)
            except (PlaceitError, MemoryError):
                if size == 2:
                    raise
                break
            sizes.append(size)
            if min(each[-2:]) > min(each):  # two doublings in a row did not help
                break
        return sizes

    def _rounds(self, sizes: Sequence[int]) -> list[dict[int, float]]:
        until, rounds = perf_counter() + _SWEEP_S, list[dict[int, float]]()
        while len(rounds) < _ROUNDS[0] or (len(rounds) < _ROUNDS[1] and perf_counter() < until):
            rounds.append({size: self._timed(size) for size in sizes})
        return rounds

    def _timed(self, size: int) -> float:
        begin = perf_counter()
        self._executor.run(self._inputs[size])
        return perf_counter() - begin

    def _wrong(self, size: int) -> str | None:
        """Run a batch of the samples in turn; return how it differs from single requests, if it does."""
        if size not in self._inputs:
            self._inputs[size] = _stacked([self._samples[k % 2] for k in range(size)])
        outputs = self._executor.run(self._inputs[size])
        expected = _stacked([self._single[k % 2] for k in range(size)])
        return _difference(outputs, expected, self._tolerance)


def best_size(rounds: Sequence[Mapping[int, float]]) -> tuple[int, float]:
    """Return the best number of requests in a batch, and the least time of a request over its time alone.

    Args:
        rounds: seconds of a batch by its number of requests, from 1 on; each round has the same numbers.
    """
    share = {size: statistics.median(one[size] / size / one[1] for one in rounds) for size in sorted(rounds[0])}
    least = min(share.values())
    best = next(size for size in share if share[size] <= _CLOSE * least)
    return (best if share[best] <= _GAIN else 1), least


class Batch:
    """Requests that an executor runs as one, with the interface of an item of :class:`placeit.runtime.feed.Feed`.

    Args:
        requests: with the same names and shapes of inputs, except for the number of rows, and their lengths with ``padding``.
        padding: how requests of different lengths are joined; None if all lengths are equal.

    Attributes:
        inputs: of all requests, by name: their rows one after the other.
        rows: number of rows.
    """

    on: Literal["host"] = "host"
    slot = None

    def __init__(self, requests: Sequence[Pending], padding: Padding | None = None) -> None:
        self.requests, self._padding = requests, padding
        given: Sequence[Arrays] = [request.inputs for request in requests]
        self._lengths = [next(iter(one.values())).shape[1] if padding is not None else 0 for one in given]
        self._longest = max(self._lengths)
        if padding is not None:
            given = [padding.padded(one, self._longest) for one in given]
        self.inputs = _stacked(given)
        self._ends = np.cumsum([request.rows for request in requests]).tolist()
        self.rows: int = self._ends[-1]

    def divided(self, outputs: Mapping[str, NDArray[Any]]) -> list[Outputs] | None:
        """Return the outputs of each request; None if an output has not as many rows as the inputs, or another length."""
        if any(not value.ndim or len(value) != self.rows for value in outputs.values()):
            return None
        by_length = () if self._padding is None else self._padding.outputs
        if any(outputs[name].shape[1] != self._longest for name in by_length):
            return None
        return [self._part(k, outputs, by_length) for k in range(len(self.requests))]

    def probe(self, number: int, outputs: Sequence[Outputs]) -> Probe:
        """Return one of the requests, to run again alone, with its outputs of the batch."""
        number %= len(self.requests)
        inputs = self._part(number, self.inputs, () if self._padding is None else self.inputs)
        return Probe(inputs, {name: np.array(value) for name, value in outputs[number].items()})

    def _part(self, k: int, values: Arrays, by_length: Collection[str]) -> Outputs:
        """Return the rows of a request, cut to its length where a name is in ``by_length``."""
        rows = slice(self._ends[k - 1] if k else 0, self._ends[k])
        return {
            name: np.array(value[rows, : self._lengths[k]] if name in by_length else value[rows])
            for name, value in values.items()
        }


@dataclass(frozen=True, eq=False)
class Probe:
    """A request of a batch that runs again alone, as a check; an item of :class:`placeit.runtime.feed.Feed`."""

    inputs: Arrays
    expected: Arrays
    on: Literal["host"] = "host"
    slot: None = None

    def wrong(self, outputs: Arrays, tolerance: float) -> str | None:
        """Return how the outputs of the batch differ from the outputs of the single run, if they do."""
        return _difference(self.expected, outputs, tolerance)


class Prober:
    """Chooses the batches of a replica that are compared with single requests."""

    def __init__(self) -> None:
        self._batches = 0
        self._next: Probe | None = None

    def ended(self, batch: Batch, outputs: Sequence[Outputs]) -> None:
        """Record a batch that has ended, with the outputs of each request, before any caller has them."""
        if self._batches % _PROBE_EVERY == 0:
            self._next = batch.probe(self._batches // _PROBE_EVERY, outputs)
        self._batches += 1

    def take(self) -> Probe | None:
        """Return the next request to run again alone, if any."""
        probe, self._next = self._next, None
        return probe


def why_fixed(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str | None:
    """Return why the rows of several requests cannot be joined, by the shapes of a model; None if they can be."""
    fixed = [
        (what, spec)
        for what, specs in (("input", inputs), ("output", outputs))
        for spec in specs
        if not spec.limits or spec.limits[0][0] == spec.limits[0][1]
    ]
    for what, spec in fixed:
        if what == "input" and spec.shape[:1] != (1,):
            said = f"is {spec.shape[0]}, and not a batch size of 1" if spec.shape else "does not exist: it is a scalar"
            return f"the first size of its input '{spec.name}' {said}"
    for what, spec in fixed[:1]:
        how = f"give --input-shape {spec.name}:1..32@1,... to 'placeit optimize' to open it"
        hint = how if what == "input" else "its graph has the size of a single request"
        return f"the first size of its {what} '{spec.name}' is not open: {hint}"
    if len({spec.limits[0] for spec in inputs if spec.limits}) != 1 or not outputs:
        return "the first sizes of its inputs have different ranges"
    return None


def rows_of(inputs: Arrays, padding: Padding | None = None) -> tuple[int, Any]:
    """Return the number of rows of a request, and a value that is equal for requests that it may be joined with.

    The value is None if its inputs have different numbers of rows.

    Args:
        inputs: by name.
        padding: how requests of different lengths are joined; None if they are not.
    """
    rows = {value.shape[0] if value.ndim else 0 for value in inputs.values()}
    if len(rows) > 1:
        return max(rows), None
    if padding is not None:
        return max(rows), padding.like(inputs)
    return max(rows), tuple((name, value.shape[1:]) for name, value in inputs.items())


def _stacked(several: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([one[name] for one in several]) for name in several[0]}


def _difference(outputs: Arrays, expected: Arrays, tolerance: float) -> str | None:
    found = OutputDifference.between(outputs, expected)
    if found.wrong(tolerance) is None:
        return None
    how = (
        f"by {found.max_rel:.1e} of the largest value" if found.fault is None else "in shape, or in values that are not finite"
    )
    return f"the outputs of a batch differ from the outputs of single requests {how}"
