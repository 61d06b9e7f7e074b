"""Names, tensors and sources of the segments of one model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from placeit.backends.base import Format, Model
from placeit.backends.checking import InputSpecs
from placeit.core.errors import DeviceError, GraphError
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Segment
from placeit.runtime.devices.base import BufferSpec, SegmentSource

__all__ = ["SegmentBook"]

B = TypeVar("B")

_FRAMEWORKS: Mapping[Format, str] = {"openvino": "OpenVINO", "onnx": "ONNX", "torch": "PyTorch"}


class SegmentBook:
    """Names, tensor specs and sources of the segments of one model, given its ops in groups.

    Args:
        model: the model.
        grouping: its ops in groups.

    Attributes:
        members: numbers of the ops of each group.
        channels_last: numbers of the tensors of the task graph that are stored channels-last at a segment's border.
        inputs: shape and type of each input of the model, by name.
        outputs: shape and type of each output of the model, by name.
        paging: writes segments with caches in blocks; None if they keep states of another form.

    Raises:
        GraphError: the grouping separates ops that have to stay together in this model.
    """

    def __init__(self, model: Model, grouping: Grouping) -> None:
        _check_together(model, grouping)
        self.model, self.grouping = model, grouping
        self.members: list[list[int]] = [[] for _ in range(len(grouping.groups))]
        for v, group in enumerate(grouping.group_of.tolist()):
            self.members[group].append(v)
        self.channels_last = model.channels_last
        self._input_of = {spec.op: spec.name for spec in model.inputs}
        self._output_of = {spec.op: spec.name for spec in model.outputs}
        inputs, self.outputs = (
            {spec.name: BufferSpec(spec.shape, spec.dtype, limits=spec.limits) for spec in specs}
            for specs in (model.inputs, model.outputs)
        )
        self.inputs = InputSpecs(inputs, model.check_sizes)
        self.paging: Any | None = None

    def source(self, segment: Segment, device: str) -> SegmentSource:
        """Return a segment in the form that devices compile; ``device`` is the device's name, for errors."""
        return _Source(self, segment, device)

    def parts(self, segment: Segment) -> tuple[list[int], list[int], list[int]]:
        """Return a segment's ops, the tensors that enter it and the tensors that leave it, by task graph number."""
        op_tensor = self.grouping.op_tensor
        enter, leave = ([int(op_tensor[t]) for t in tensors] for tensors in (segment.inputs, segment.outputs))
        return self.ops(segment), enter, leave

    def ops(self, segment: Segment) -> list[int]:
        """Return the op numbers of a segment, ascending."""
        return sorted(v for group in segment.groups for v in self.members[group])

    def op_names(self, segment: Segment) -> list[str]:
        """Return the op names of a segment, in topological order."""
        return [self.grouping.graph.names[v] for v in self.ops(segment)]

    def inputs_of(self, segment: Segment) -> list[str]:
        """Return the names of the model's inputs that are ops of a segment, in op order."""
        return [self._input_of[name] for name in self.op_names(segment) if name in self._input_of]

    def outputs_of(self, segment: Segment) -> list[str]:
        """Return the names of the model's outputs that are ops of a segment, in op order."""
        return [self._output_of[name] for name in self.op_names(segment) if name in self._output_of]

    def spec(self, tensor: int) -> BufferSpec:
        """Return shape, type and memory order of a tensor of the group graph when it crosses a segment's border."""
        graph, t = self.grouping.graph, int(self.grouping.op_tensor[tensor])
        return BufferSpec(graph.tensor_shapes[t], graph.tensor_dtypes[t], t in self.channels_last, self.model.limits.get(t))

    def hand_through(self, segment: Segment, entering: Mapping[int, B], inputs: Mapping[str, B]) -> list[B]:
        """Return the outputs of a segment that computes nothing: tensors for other segments, then outputs of the model.

        Args:
            segment: a segment that only passes on tensors that it reads.
            entering: its tensors from other segments, as buffers or in another form, by tensor of the group graph.
            inputs: the model's inputs in the same form, by name.
        """
        graph, op_tensor = self.grouping.graph, self.grouping.op_tensor
        values = {int(op_tensor[t]): buffer for t, buffer in entering.items()}
        for v in self.ops(segment):
            if graph.kinds[v] == "Parameter":
                for t, op in enumerate(graph.tensor_op.tolist()):
                    if op == v:
                        values[t] = inputs[self._input_of[graph.names[v]]]
        ends = [v for v in self.ops(segment) if graph.kinds[v] == "Result"]
        reads = {v: int(t) for (_, v), t in zip(graph.edges.tolist(), graph.edge_tensor, strict=True)}
        return [values[int(op_tensor[t])] for t in segment.outputs] + [values[reads[v]] for v in ends]


def _check_together(model: Model, grouping: Grouping) -> None:
    for first, *others in model.together:
        for other in others:
            if grouping.group_of[grouping.graph.index[first]] != grouping.group_of[grouping.graph.index[other]]:
                raise GraphError(
                    f"Ops '{first}' and '{other}' share state, or a tensor whose size depends on the data, and cannot be "
                    "separated: group the model with keep_together=model.together."
                )


@dataclass(frozen=True, eq=False)
class _Source:
    """A segment of a model, for a device to compile."""

    book: SegmentBook
    segment: Segment
    device: str

    @functools.cached_property
    def inputs(self) -> tuple[BufferSpec, ...]:
        ends = (self.book.inputs[name] for name in self.book.inputs_of(self.segment))
        return (*map(self.book.spec, self.segment.inputs), *ends)

    @functools.cached_property
    def outputs(self) -> tuple[BufferSpec, ...]:
        ends = (self.book.outputs[name] for name in self.book.outputs_of(self.segment))
        return (*map(self.book.spec, self.segment.outputs), *ends)

    def paged(self) -> Any | None:
        """See :class:`placeit.runtime.devices.state.MayBePaged`."""
        return None if self.book.paging is None else self.book.paging.page(self.in_format("openvino"))

    @property
    def identity(self) -> str:
        form = "" if self.book.paging is None else " in blocks"
        return f"{self.book.model.identity} {self.book.parts(self.segment)}{form}"

    def in_format(self, form: Format) -> Any:
        model = self.book.model
        if form not in model.formats and not model.placed:
            raise DeviceError(
                f"{self.device} runs {_FRAMEWORKS[form]} programs, and {model.path} is not read with {_FRAMEWORKS[form]}: "
                "convert it with `placeit export`, or choose other devices."
            )
        return model.segment(form, *self.book.parts(self.segment))
