"""Shapes of a model with open sizes, or with state that grows, at the sizes for which placements are sought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import Any, Self

from placeit.core.errors import ModelError
from placeit.core.telemetry import import_openvino

__all__ = ["Points", "Sized", "Typical"]

openvino = import_openvino()


@dataclass(frozen=True)
class Typical:
    """Typical sizes of a model's open dimensions.

    Attributes:
        inputs: the shape of each input, in the model's order; None for an input without open sizes.
        state: the length of the model's state along its open dimension; None for a guess by the inputs.
    """

    inputs: tuple[tuple[int, ...] | None, ...] = ()
    state: int | None = None

    @property
    def open(self) -> bool:
        """True if an input has open sizes."""
        return any(shape is not None for shape in self.inputs)

    def states(self, model: Any) -> list[int]:
        """Return lengths of the state that may fit the inputs of a model, likely ones first.

        These are as many steps as one input has beyond another, the longest beyond the shortest for a start, or as one has.
        """
        if self.state is not None or not model.get_sinks():
            return [self.state or 1]
        shapes = [node.get_partial_shape() for node in model.get_parameters()]
        fixed = [tuple(shape.to_shape()) if shape.is_static else () for shape in shapes]
        known = [shape or other for shape, other in zip_longest(self.inputs[: len(fixed)], fixed)]
        longest = sorted(max(shape) for shape in known if shape)
        if not longest:
            return [1]
        sizes = sorted({size for shape in known for size in shape}, reverse=True)
        beyond = sorted({more - less for more, less in combinations(sizes, 2)}, reverse=True)
        likely = [longest[-1] - longest[0], longest[-1]] if longest[-1] > longest[0] else [longest[-1]]
        return [*dict.fromkeys((*likely, *beyond, *sizes, 1, 0))]


@dataclass(frozen=True)
class Points:
    """Typical sizes for which one placement is sought.

    Attributes:
        typical: sizes. The shapes of the task graph are those of the first; operations and bytes are means.
        times: how often each comes, in proportion.
    """

    typical: tuple[Typical, ...] = (Typical(),)
    times: tuple[int, ...] = (1,)

    @property
    def shares(self) -> list[float]:
        """How often each comes, as a share of all."""
        return [often / sum(self.times) for often in self.times]


class Sized:
    """The nodes of a model with the shapes that they have at typical sizes.

    What still has an open dimension is of a size that depends on the data.

    Args:
        model: an ``openvino.Model`` with unique friendly names; it is not changed.
        typical: its sizes.

    Raises:
        ModelError: the model does not fit them.
    """

    def __init__(self, model: Any, typical: Typical) -> None:
        if not typical.open and not model.get_sinks():
            self._nodes: Mapping[str, Any] = {node.get_friendly_name(): node for node in model.get_ops()}
            return
        failed: RuntimeError | None = None
        for length in typical.states(model):
            try:
                self._nodes, self._model = _nodes_of(model, typical.inputs, length)
            except RuntimeError as error:
                failed = failed or error
            else:
                return
        raise ModelError(f"The typical sizes of the inputs do not fit each other: {str(failed).strip().splitlines()[-1]}")

    @classmethod
    def all(cls, model: Any, points: Points) -> list[Self]:
        """Infer the shapes of a model at several points. Raises ModelError."""
        return [cls(model, typical) for typical in points.typical]

    def node(self, name: str) -> Any:
        """Return the node of a friendly name."""
        return self._nodes[name]

    def shape(self, name: str, port: int) -> Any:
        """Return the ``PartialShape`` of a node's output, by the node's friendly name."""
        return self._nodes[name].get_output_partial_shape(port)


def _nodes_of(model: Any, inputs: Sequence[tuple[int, ...] | None], length: int) -> tuple[dict[str, Any], Any]:
    """Infer all shapes in a copy, in which state is read from parameters. Raises RuntimeError."""
    copy = model.clone()
    for parameter, shape in zip(copy.get_parameters(), inputs, strict=False):
        if shape is not None:
            parameter.set_partial_shape(openvino.PartialShape(list(shape)))
    copy.validate_nodes_and_infer_types()
    nodes = {node.get_friendly_name(): node for node in copy.get_ops()}
    written = {
        node.get_variable_id(): node.get_input_partial_shape(0) for node in nodes.values() if node.get_type_name() == "Assign"
    }
    stand_ins = []
    for name, node in nodes.items():
        if node.get_type_name() == "ReadValue" and node.get_output_partial_shape(0).is_dynamic:
            shape = _fixed(node.get_output_partial_shape(0), written.get(node.get_variable_id()), length)
            stand_in = openvino.op.Parameter(node.get_output_element_type(0), shape)
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(stand_in.output(0))
            stand_ins.append((name, stand_in))
    kept = [openvino.opset13.result(nodes[name].output(0)) for name, _ in stand_ins]  # so that nothing is lost
    copy.add_results(kept)
    copy.add_parameters([stand_in for _, stand_in in stand_ins])
    copy.validate_nodes_and_infer_types()
    return nodes | dict(stand_ins), copy


def _fixed(read: Any, written: Any, length: int) -> Any:
    """Return the shape of a state: what is open in what is read, and in what is written, is as long as said."""
    if read.rank.is_dynamic:
        raise RuntimeError("a state has any number of dimensions")
    known = list(written) if written is not None and written.rank == read.rank else [openvino.Dimension()] * len(read)
    sizes = [
        size.get_length() if size.is_static else other.get_length() if other.is_static else length
        for size, other in zip(read, known, strict=True)
    ]
    return openvino.PartialShape(sizes)
