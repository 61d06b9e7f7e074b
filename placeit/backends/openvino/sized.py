"""Infer the shapes of a model with open sizes, or with state that grows, at its typical sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        state: length of the model's state along its open dimension when a request starts; None if unknown, so that shapes that
            depend on it stay open.
    """

    inputs: tuple[tuple[int, ...] | None, ...] = ()
    state: int | None = 0

    @property
    def open(self) -> bool:
        """True if an input has open sizes."""
        return any(shape is not None for shape in self.inputs)


@dataclass(frozen=True)
class Points:
    """Typical sizes for which one placement is sought.

    Attributes:
        typical: the sizes. The task graph has the shapes at the first; operations and bytes are means.
        times: how often each of them occurs, in proportion.
    """

    typical: tuple[Typical, ...] = (Typical(),)
    times: tuple[int, ...] = (1,)

    @property
    def shares(self) -> list[float]:
        """Share of the requests that have each of the sizes."""
        return [often / sum(self.times) for often in self.times]


class Sized:
    """The nodes of a model with the shapes that they have at typical sizes.

    A dimension that is still open has a size that depends on the data.

    Args:
        model: an ``openvino.Model`` with unique friendly names; it is not changed.
        typical: the model's sizes.

    Attributes:
        state_after: length of its state along open dimensions, after a run.

    Raises:
        ModelError: the model does not fit these sizes.
    """

    state_after = 0

    def __init__(self, model: Any, typical: Typical) -> None:
        if not typical.open and not model.get_sinks():
            self._nodes: Mapping[str, Any] = {node.get_friendly_name(): node for node in model.get_ops()}
            return
        try:
            self._nodes, self._model, length = _inferred(model, typical.inputs, typical.state)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ModelError(f"The typical sizes of the inputs do not fit each other: {reason}") from error
        self.state_after = typical.state or 0 if length is None else length

    @classmethod
    def all(cls, model: Any, points: Points) -> list[Self]:
        """Return the nodes with their shapes at several points. Raises ModelError."""
        return [cls(model, typical) for typical in points.typical]

    def node(self, name: str) -> Any:
        """Return the node with a friendly name."""
        return self._nodes[name]

    def shape(self, name: str, port: int) -> Any:
        """Return the ``PartialShape`` of a node's output, by the node's friendly name."""
        return self._nodes[name].get_output_partial_shape(port)


def _inferred(
    model: Any, inputs: Sequence[tuple[int, ...] | None], length: int | None
) -> tuple[dict[str, Any], Any, int | None]:
    """Infer all shapes of a model in a copy, in which parameters replace state of a known length. Raises RuntimeError.

    Returns:
        The nodes by name; the copy; and the length of the state after a run, None if that is unknown.
    """
    copy = model.clone()
    for parameter, shape in zip(copy.get_parameters(), inputs, strict=False):
        if shape is not None:
            parameter.set_partial_shape(openvino.PartialShape(list(shape)))
    copy.validate_nodes_and_infer_types()
    nodes = {node.get_friendly_name(): node for node in copy.get_ops()}
    if length is None:
        return nodes, copy, None
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
    # results keep the replaced nodes in the model
    copy.add_results([openvino.opset13.result(nodes[name].output(0)) for name, _ in stand_ins])
    copy.add_parameters([stand_in for _, stand_in in stand_ins])
    copy.validate_nodes_and_infer_types()
    for node in nodes.values():
        if node.get_type_name() == "ScaledDotProductAttention" and node.get_input_size() > 3:
            keys, mask = node.get_input_partial_shape(1), node.get_input_partial_shape(3)
            if keys.is_static and mask.is_static and len(mask) > 0 and mask.to_shape()[-1] not in (1, keys.to_shape()[-2]):
                # shape inference would broadcast a single key, which no attention kernel does
                raise RuntimeError("Attention mask is not as long as the keys.")
    return nodes | dict(stand_ins), copy, _length_after(copy, written)


def _length_after(model: Any, before: Mapping[str, Any]) -> int | None:
    """Return the length with which a state is written along the dimension that grows; None if no state grows.

    Args:
        model: the model with all shapes inferred.
        before: shapes of the written states, by variable, that were inferred while the length of the state was open.
    """
    for write in model.get_sinks():
        written, unsized = write.get_input_partial_shape(0), before[write.get_variable_id()]
        for axis, size in enumerate(unsized if unsized.rank.is_static else ()):
            if size.is_dynamic and written[axis].is_static:
                return int(written[axis].get_length())
    return None


def _fixed(read: Any, written: Any, length: int) -> Any:
    """Return the shape of a state in which dimensions that are open in both its shapes have the given length.

    Args:
        read: shape with which the state is read.
        written: shape with which it is written; None if it is not.
        length: the length.
    """
    if read.rank.is_dynamic:
        raise RuntimeError("a state has any number of dimensions")
    others = written if written is not None and written.rank == read.rank else read
    sizes = (size if size.is_static else other for size, other in zip(read, others, strict=True))
    return openvino.PartialShape([size.get_length() if size.is_static else length for size in sizes])
