"""Segments with open sizes, compiled for each size, where one OpenVINO program for all sizes is slow or fails."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, Generic, TypeVar

from placeit.backends.base import Format
from placeit.core.errors import PlaceitError
from placeit.core.narrowing import narrowed
from placeit.core.telemetry import import_openvino
from placeit.runtime.devices.base import Buffer, BufferSpec, Program, Runnable, SegmentSource
from placeit.runtime.devices.host_buffer import HostBuffer, shared_tensor

__all__ = ["MAX_PROGRAMS", "BySize", "BySizeInstance", "times_slower"]

MAX_PROGRAMS = 8  # cached programs of a segment, each with its own weights
_WARMUP, _RUNS = 2, 7  # warm-up and timed runs of each of two programs that are compared

Shapes = tuple[tuple[int, ...], ...]
"""Shapes of all inputs of a segment, in memory order."""

P = TypeVar("P", bound=Program)


class BySize(Generic[P]):
    """A segment with open sizes that is compiled for each size at its first run; the last used programs are cached.

    Args:
        segment: a segment with open sizes, in OpenVINO's format.
        compiled: compiles a segment whose inputs have fixed sizes. This class cannot run a segment whose outputs still have
            open sizes, since values of inputs determine them.
    """

    from_disk = False

    def __init__(self, segment: SegmentSource, compiled: Callable[[SegmentSource], P]) -> None:
        self.inputs, self.outputs = segment.inputs, segment.outputs
        self._segment, self._compile_fixed = segment, compiled
        self._model = segment.in_format("openvino")
        self._cached: OrderedDict[Shapes, P] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def has_state(self) -> bool:
        """True if the segment keeps state, which programs for several sizes cannot share."""
        return bool(self._model.get_variables())

    def at(self, shapes: Shapes) -> P:
        """Return the program for some sizes. Raises DeviceError if it cannot be compiled."""
        with self._lock:
            if shapes not in self._cached:
                self._cached[shapes] = self._compile_fixed(_AtSizes(self._segment, self._model, shapes))
                if len(self._cached) > MAX_PROGRAMS:
                    self._cached.popitem(last=False)
            self._cached.move_to_end(shapes)
            return self._cached[shapes]

    def at_typical_sizes(self) -> P:
        """Return the program for the typical sizes, for which placements are searched. Raises DeviceError."""
        return self.at(tuple(spec.memory_shape for spec in self.inputs))

    def keeps(self, program: Program) -> bool:
        """Return whether a program is still cached."""
        with self._lock:
            return any(program is kept for kept in self._cached.values())


@dataclass(frozen=True, eq=False)
class _AtSizes:
    """A segment at fixed sizes."""

    segment: SegmentSource
    open_model: Any
    shapes: Shapes

    @cached_property
    def model(self) -> Any:
        model = self.open_model.clone()
        model.reshape({i: import_openvino().PartialShape(list(shape)) for i, shape in enumerate(self.shapes)})
        return model

    @property
    def inputs(self) -> tuple[BufferSpec, ...]:
        return tuple(_fixed(spec, shape) for spec, shape in zip(self.segment.inputs, self.shapes, strict=True))

    @property
    def outputs(self) -> tuple[BufferSpec, ...]:
        shapes = [port.get_partial_shape() for port in self.model.outputs]
        return tuple(
            spec if shape.is_dynamic else _fixed(spec, tuple(shape.to_shape()))
            for spec, shape in zip(self.segment.outputs, shapes, strict=True)
        )

    @property
    def identity(self) -> str:
        return self.segment.identity and f"{self.segment.identity} {self.shapes}"

    def in_format(self, form: Format) -> Any:  # noqa: ARG002 (it is OpenVINO's)
        return self.model


def _fixed(spec: BufferSpec, shape: Sequence[int]) -> BufferSpec:
    """Return the spec of a tensor at a fixed shape, which is given in memory order."""
    order = (0, 3, 1, 2) if spec.channels_last else range(len(shape))
    return spec if spec.limits is None else replace(spec, shape=tuple(shape[i] for i in order), limits=None)


class BySizeInstance:
    """An instance that runs the program for the present sizes of its inputs.

    Args:
        program: the program.
        instance: makes an instance of the program for a size.
    """

    def __init__(self, program: BySize[Any], instance: Callable[[Program], Runnable]) -> None:
        self.program, self._instance = program, instance
        self._outputs = [HostBuffer(spec) for spec in program.outputs]
        self._bound: dict[int, HostBuffer] = {}
        self._instances: dict[Program, Runnable] = {}

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run."""
        self._bound[index] = narrowed(HostBuffer, buffer)

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in every later run."""
        self._outputs[index] = narrowed(HostBuffer, buffer)

    def output(self, index: int) -> HostBuffer:
        """Return the buffer that output ``index`` is written to."""
        return self._outputs[index]

    def run(self) -> None:
        """Compute the outputs. Raises DeviceError if the program for these sizes cannot be compiled."""
        program = self.program.at(tuple(tuple(self._bound[i].tensor.shape) for i in range(len(self.program.inputs))))
        if program not in self._instances:
            self._instances = {one: made for one, made in self._instances.items() if self.program.keeps(one)}
            self._instances[program] = self._instance(program)
        instance = self._instances[program]
        for i, spec in enumerate(program.outputs):
            if self._outputs[i].spec.limits is not None:
                self._outputs[i].resize(spec.shape)
            instance.write_to(i, _at_size(self._outputs[i], spec))
        for i, spec in enumerate(program.inputs):
            instance.bind(i, _at_size(self._bound[i], spec))
        instance.run()


def _at_size(buffer: HostBuffer, spec: BufferSpec) -> HostBuffer:
    """Return a view of a buffer with open sizes at its present shape; any other buffer itself."""
    if buffer.spec.limits is None:
        return buffer
    return HostBuffer(spec, shared_tensor(buffer.tensor.data))


def times_slower(program: Program, other: Program, instance: Callable[[Program], Runnable]) -> float:
    """Run two programs alternately on zeros of the typical sizes; return by which factor the first is slower.

    Args:
        program: a program of a segment. It may fail to run.
        other: another program of the segment, which must not fail.
        instance: makes an instance of either program.

    Returns:
        The ratio of their fastest runs; infinity if the first program fails.
    """
    made = [instance(program), instance(other)]
    for one in made:
        for i, spec in enumerate(program.inputs):
            one.bind(i, HostBuffer(replace(spec, limits=None)))
    seconds: list[list[float]] = [[], []]
    for _ in range(_WARMUP + _RUNS):
        for one, of in zip(made, seconds, strict=True):
            begin = perf_counter()
            try:
                one.run()
            except (PlaceitError, RuntimeError):
                if one is made[0]:
                    return math.inf
                raise
            of.append(perf_counter() - begin)
    first, second = (min(of[_WARMUP:]) for of in seconds)
    return first / second
