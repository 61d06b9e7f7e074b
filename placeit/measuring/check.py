"""The output check: whether an executor computes the same outputs as the uncut model.

A check that only compares outputs passes if a segment does nothing and its output of an earlier run is still in the buffer. So
every buffer that a checked run has to write is filled with NaN before (:mod:`placeit.runtime.blank`), the model runs on two
inputs whose outputs differ, and a write after a device has reported the end of a run is detected.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Model
from placeit.core.errors import PlaceitError, UsageError
from placeit.core.graph import OpGraph

__all__ = [
    "RUNS",
    "Checkable",
    "OutputCheck",
    "OutputDifference",
    "check_tolerance",
    "other_inputs",
    "rounded_inputs",
    "tolerance_of",
    "tolerance_of_rounding",
]

_TOLERANCES = {"f32": 1e-3, "f16": 2e-2, "float16": 2e-2, "fp16": 2e-2, "bf16": 1e-1, "bfloat16": 1e-1, "int8": 1e-1}
"""Largest ``max_rel`` of right outputs: by precision, by type of a tensor, and by type that is sent between nodes."""
_STANDARD_DEVIATIONS = 4.0  # fewer than one of 10,000 normally distributed values is beyond
_ROUNDING = 2.0**-23  # relative change of a value of float32 by one rounding
_AMPLIFICATION = 4.0  # of the effect of rounding the inputs, as segments round in more places
_MAX_ROUNDING = 0.1  # the tolerance of int8 and bfloat16: wrong outputs usually differ by more
RUNS = 2  # runs of an executor in a check, each on other inputs
_DISTINCT = 0.01  # outputs that differ by this share of the largest value are distinct; rounding errors are smaller
_PAUSE_S = (0.002, 0.1)  # bounds of the seconds to wait for late writes; between them, as long as the run took
_FAILURES = (PlaceitError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)


def check_tolerance(tolerance: float | None) -> None:
    """Raise UsageError if a tolerance is negative or NaN."""
    if tolerance is not None and not tolerance >= 0:
        raise UsageError(f"The tolerance is {tolerance}; it must be a number that is not negative.")


def tolerance_of(types: Iterable[str]) -> float:
    """Return the largest ``OutputDifference.max_rel`` of right outputs, given all precisions, types and compressions."""
    return max(_TOLERANCES.get(name, 0.0) for name in types)


def tolerance_of_rounding(graph: OpGraph, steps: Mapping[str, float]) -> float:
    """Return how much right outputs of a quantised model may differ, as a share of an output's largest value.

    Parts of a model add up in another order than the whole. A value that lies between two steps of a quantisation may therefore
    be rounded to the other step, which changes later values by a step, and later roundings. At worst the roundings of two runs
    have nothing in common. The difference of two such errors has the variance step² / 6, and independent ones add up: four
    standard deviations are 4 · sqrt(sum of step² / 6), along the path with the largest sum. The result is 0.1 at most.

    Args:
        graph: the task graph.
        steps: quantisation step of each op that rounds, by its name, as a share of the largest value.
    """
    if not steps:
        return 0.0
    variance = np.array([steps.get(name, 0.0) ** 2 / 6 for name in graph.names])
    for v in range(len(graph)):
        producers = graph.edges[graph.predecessors.row(v), 0]
        variance[v] += variance[producers].max(initial=0.0)
    return float(min(_STANDARD_DEVIATIONS * np.sqrt(variance.max()), _MAX_ROUNDING))


@dataclass(frozen=True)
class OutputDifference:
    """The difference between the outputs of a placement and the outputs of the whole model on one device in float32.

    Attributes:
        max_abs: largest absolute difference of any element of any output.
        max_rel: for each output, the largest absolute difference over the largest absolute value of the reference; the worst
            of all outputs.
        fault: why the differences are infinite; None if they are finite.
        not_checked: why small differences prove little; None if they prove the outputs right. Large differences prove them
            wrong in any case.
        alike: ``max_rel`` against the whole model in the precision of the devices; None if that is float32.
        not_finite: share of an output's values that are NaN, or the same infinity, on both sides and so have no difference; the
            worst of all outputs.
        rounding: ``max_rel`` of the whole model against itself, on inputs that differ by a rounding in float32. It is measured
            only for differences beyond the tolerance; 0 otherwise.
    """

    max_abs: float
    max_rel: float
    fault: str | None = None
    not_checked: str | None = None
    not_finite: float = 0.0
    alike: float | None = None
    rounding: float = 0.0

    @classmethod
    def between(cls, outputs: Arrays, reference: Arrays) -> OutputDifference:
        """Compare outputs by name.

        An element that is finite on one side only has an infinite difference, and so has an output that is missing or has
        another shape. NaN equals NaN, and infinity equals infinity.
        """
        worst = cls(0.0, 0.0)
        for name, expected in reference.items():
            worst = worst.worse(_difference(name, outputs.get(name), expected))
        return worst

    def wrong(self, tolerance: float) -> str | None:
        """Explain why outputs are wrong, given the largest accepted ``max_rel``; None if they are right.

        A difference is not wrong either if rounding moves the outputs of the uncut model as far (:attr:`rounding`).
        """
        coarse = ""
        if self.alike is not None and self.alike <= tolerance:
            coarse = (
                f" Against the uncut model in the same precision they are off by {self.alike:.1e}: the precision is too coarse "
                "for the model, and not its division. Choose f32, or give a larger --tolerance."
            )
        if self.fault is not None:
            return f"Its outputs are wrong: {self.fault}.{coarse}"
        if self.max_rel <= max(tolerance, _AMPLIFICATION * self.rounding):
            return None
        return (
            f"Its outputs are wrong: they are off by {self.max_rel:.1e} of the uncut model's largest, and the tolerance is "
            f"{tolerance:g}.{coarse}"
        )

    def worse(self, other: OutputDifference) -> OutputDifference:
        """Return the larger value of each attribute of two differences."""
        return OutputDifference(
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
            self.fault or other.fault,
            self.not_checked or other.not_checked,
            max(self.not_finite, other.not_finite),
            max((alike for alike in (self.alike, other.alike) if alike is not None), default=None),
            max(self.rounding, other.rounding),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the difference for JSON; infinite values become null, and ``fault`` then gives the reason."""
        return {
            "max_abs": self.max_abs if np.isfinite(self.max_abs) else None,
            "max_rel": self.max_rel if np.isfinite(self.max_rel) else None,
            "fault": self.fault,
            "not_checked": self.not_checked,
            "not_finite": self.not_finite,
            "rounding": self.rounding,
            "same_precision": self.alike if self.alike is not None and np.isfinite(self.alike) else None,
        }


def _difference(name: str, given: NDArray[Any] | None, expected: NDArray[Any]) -> OutputDifference:
    if given is None:
        return _infinite(f"the output '{name}' is missing")
    if given.shape != expected.shape:
        return _infinite(f"the output '{name}' has the shape {list(given.shape)}; the uncut model's has {list(expected.shape)}")
    kind = np.complex128 if "c" in given.dtype.kind + expected.dtype.kind else np.float64
    ours, theirs = given.astype(kind), expected.astype(kind)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    gap = np.where(same, 0.0, np.abs(np.subtract(ours, theirs, where=~same, out=np.zeros_like(ours))))
    wrong = ~np.isfinite(gap)
    if wrong.any():
        return _infinite(f"the output '{name}' has {ours[wrong][0]:g} where the uncut model's has {theirs[wrong][0]:g}")
    largest = float(gap.max(initial=0.0))
    finite = np.isfinite(theirs)
    scale = float(np.abs(theirs[finite]).max(initial=0.0))
    not_finite = 1.0 - float(finite.mean()) if finite.size else 0.0
    why = (
        f"every value of the output '{name}' is {_values(theirs)}, and of the uncut model's as well"
        if not_finite == 1
        else None
    )
    return OutputDifference(largest, largest / scale if scale > 0 else largest, not_checked=why, not_finite=not_finite)


def _values(values: NDArray[Any]) -> str:
    """Classify values that are not finite."""
    return "NaN" if np.isnan(values).all() else "infinite" if not np.isnan(values).any() else "NaN or infinite"


def _infinite(why: str) -> OutputDifference:
    return OutputDifference(np.inf, np.inf, why)


class Checkable(Protocol):
    """An object that computes outputs: a :class:`placeit.runtime.plan_executor.PlanExecutor`, or a reference of a race."""

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Run once on some inputs, and return outputs by name."""
        ...

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Return the outputs of the last run, by name."""
        ...

    def blank(self, sentinel: int) -> str | None:
        """See :meth:`placeit.runtime.plan_executor.PlanExecutor.blank`."""
        ...


class OutputCheck:
    """Checks executors of one model. The reference runs during construction, and once more if some outputs differ.

    Args:
        inputs: the inputs that a check leaves in place in an executor.
        others: more inputs to try, until some lead to other outputs. Inputs of other sizes come first, and are preferred.
        reference: runs the uncut model.
        tolerance: the ``max_rel`` up to which outputs pass. The outputs of the two inputs have to differ by more than that, and
            by more than 1 %.
        alike: runs the uncut model in the precision of the devices; None if the reference has that precision.

    Raises:
        PlaceitError: the uncut model does not run on ``inputs``.

    Attributes:
        runs: the two inputs, each with the outputs of the uncut model; ``inputs`` come last.
        expected: outputs of the uncut model on ``inputs``.
        not_checked: why a passed check proves little; None if it proves that outputs are right.
    """

    def __init__(
        self,
        inputs: Arrays,
        others: Iterable[Arrays],
        reference: Callable[[Arrays], Arrays],
        tolerance: float = 0.0,
        alike: Callable[[Arrays], Arrays] | None = None,
    ) -> None:
        self.expected = reference(inputs)
        self.not_checked = OutputDifference.between(self.expected, self.expected).not_checked
        second, max_distinct = (inputs, self.expected), 0  # outputs that differ between the two inputs
        for other in others:
            if max_distinct and _shapes(second[0]) != _shapes(inputs) == _shapes(other):
                break  # inputs of another size show more
            try:
                outputs = reference(other)
            except _FAILURES:  # the model cannot make sense of them
                continue
            distinct = sum(
                OutputDifference.between({name: outputs[name]}, {name: expected}).max_rel > max(_DISTINCT, tolerance)
                for name, expected in self.expected.items()
            )
            if distinct > max_distinct:
                second, max_distinct = (other, outputs), distinct
            if max_distinct == len(self.expected):
                break
        if max_distinct == 0 and self.not_checked is None:
            why = "the model has no inputs" if not inputs else "all inputs that were tried give the same outputs"
            self.not_checked = f"{why}, so that outputs of an earlier run would not be noticed"
        # consecutive runs need different inputs; races run on `inputs`, so a check starts with the other ones
        self.runs = (second, (inputs, self.expected))
        self._alike = [None if alike is None else alike(arrays) for arrays, _ in self.runs]
        self._reference, self._tolerance = reference, tolerance

    @functools.cached_property
    def _rounding(self) -> float:
        """``max_rel`` of the uncut model on inputs that differ by roundings; 0 if it differs on equal inputs as well."""
        worst = 0.0
        for inputs, _ in self.runs:
            near, other = (rounded_inputs(inputs, seed) for seed in (0, 1))  # for `inputs` themselves, bundles store outputs
            outputs = self._reference(near)
            if OutputDifference.between(self._reference(near), outputs).max_rel > self._tolerance:
                return 0.0
            worst = max(worst, OutputDifference.between(self._reference(other), outputs).max_rel)
        return worst if np.isfinite(worst) else 0.0

    def __call__(self, executor: Checkable, *, after: bool = False) -> OutputDifference:
        """Run an executor on both inputs and compare its outputs.

        Args:
            executor: the executor, which must be idle.
            after: whether it has been checked before. For each input, buffers of types without NaN are then filled with the
                other sentinel, so that a segment that does nothing is wrong in one of the two checks.

        Raises:
            ExecutionError: a device failed.
        """
        worst = OutputDifference(0.0, 0.0, not_checked=self.not_checked)
        sentinel, pause = int(after), _PAUSE_S[0]
        late = _late_write(executor, sentinel, pause)
        for (inputs, expected), alike in zip(self.runs, self._alike, strict=True):
            begin = time.perf_counter()
            outputs = executor.run(inputs)
            pause = float(np.clip(time.perf_counter() - begin, *_PAUSE_S))
            worst = worst.worse(OutputDifference.between(outputs, expected))
            if alike is not None:
                worst = worst.worse(OutputDifference(0.0, 0.0, alike=OutputDifference.between(outputs, alike).max_rel))
            late = late or _changed(executor.outputs(), outputs)
            sentinel = 1 - sentinel
            late = _late_write(executor, sentinel, pause) or late
        if late is not None:
            return worst.worse(_infinite(late))
        if worst.fault is None and 0 < self._tolerance < worst.max_rel <= _AMPLIFICATION * self._rounding:
            why = f"rounding the inputs moves the outputs of the uncut model by {self._rounding:.1e} of the largest as well"
            return replace(worst, rounding=self._rounding, not_checked=worst.not_checked or why)
        return worst


def _late_write(executor: Checkable, sentinel: int, seconds: float) -> str | None:
    """Blank all that a run writes, twice, ``seconds`` apart; return the fault if something was written meantime, else None."""
    before = executor.blank(sentinel)
    time.sleep(seconds)
    return executor.blank(sentinel) or before


def _changed(now: Arrays, before: Arrays) -> str | None:
    for name, value in now.items():
        if value.tobytes() != before[name].tobytes():
            return f"the output '{name}' changed after the run had ended"
    return None


def rounded_inputs(inputs: Arrays, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Return inputs whose float32 and float64 values are, at random, larger or smaller by a rounding in float32."""
    rng = np.random.default_rng(seed)
    return {
        name: (value.astype(float) * (1 + _ROUNDING * rng.choice((-1, 1), value.shape))).astype(value.dtype)
        if value.dtype in (np.float32, np.float64)
        else value
        for name, value in inputs.items()
    }


def other_inputs(model: Model, inputs: Arrays, *, given: bool) -> Iterator[dict[str, NDArray[np.generic]]]:
    """Yield inputs that may lead to other outputs: of other sizes if sizes are open, random, shuffled, and scaled inputs.

    The last of them have half of their integers set to zero, as in a mask. Shuffled inputs have the same whole numbers and
    truth values equally often, so that the model likely accepts them.

    Args:
        model: draws random inputs, and knows at which sizes it can run.
        inputs: the inputs to vary.
        given: whether a user gave ``inputs``. As a user may know better than the model which inputs are valid, random ones then
            come last.
    """
    drawn = [model.random_inputs(seed) for seed in (1, 2)]
    rng = np.random.default_rng(0)
    if model.has_open_sizes:
        yield from _of_other_sizes(model, [inputs, *([] if given else drawn)])
    shuffled = {name: rng.permuted(value.ravel()).reshape(value.shape) for name, value in inputs.items()}
    varied = [shuffled, *({name: _scaled(value, by) for name, value in inputs.items()} for by in (-1.0, 0.1, 10.0))]
    binary = {
        name: value * (rng.random(value.shape) < 0.5).astype(value.dtype) if value.dtype.kind in "iu" else value
        for name, value in inputs.items()
    }
    uniform = {
        name: rng.random(value.shape).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in shuffled.items()
    }
    yield from (*varied, uniform, binary, *drawn) if given else (*drawn, *varied, uniform, binary)


def _of_other_sizes(model: Model, several: Sequence[Arrays]) -> Iterator[dict[str, NDArray[np.generic]]]:
    """Yield inputs of random sizes in range, and then of the smallest sizes, with the values of each of several inputs.

    Sizes that are equal in the first inputs stay equal, as the sizes of a text and its mask have to.
    """
    ranges: dict[int, tuple[int, int]] = {}  # by size in the first inputs
    for spec in model.inputs:
        for size, (low, high) in zip(several[0][spec.name].shape, spec.limits or (), strict=False):
            if low < high:
                other_low, other_high = ranges.get(size, (low, high))
                ranges[size] = max(other_low, low), min(other_high, high)
    rng = np.random.default_rng(0)
    drawn: dict[int, int] = {}
    for size, (low, high) in ranges.items():
        ends = (size + 1, min(high, 2 * size) + 1) if high > size else (low, max(size, low + 1))
        drawn[size] = int(rng.integers(*ends))
    for sizes in (drawn, {size: low for size, (low, _) in ranges.items()}):
        shapes = {
            spec.name: tuple(
                sizes[size] if low < high else size
                for size, (low, high) in zip(several[0][spec.name].shape, spec.limits, strict=True)
            )
            for spec in model.inputs
            if spec.limits is not None
        }
        try:
            model.check_sizes(_shapes(several[0]) | shapes)
        except UsageError:
            continue
        for inputs in several:
            yield {name: np.resize(value, shapes.get(name, value.shape)) for name, value in inputs.items()}


def _shapes(inputs: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in inputs.items()}


def _scaled(value: NDArray[Any], by: float) -> NDArray[Any]:
    if value.dtype.kind not in "fc":
        return value
    with np.errstate(over="ignore"):  # float16 overflows early
        return (value * by).astype(value.dtype)
