"""Cut parts out of ONNX models for ONNX Runtime."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from placeit.backends.base import TensorSpec
from placeit.backends.checking import numpy_can_hold
from placeit.backends.onnx.digest import onnx_digest
from placeit.backends.onnx_external import folder_of, note_folder
from placeit.backends.openvino.view import connected
from placeit.core.errors import DeviceError
from placeit.core.graph import OpGraph
from placeit.core.sizes import Limits

__all__ = ["KNOWN_VERSION", "OnnxParts", "drop_repeated_names", "fix_shape", "reads"]

_MIN_VERSION = 4  # format version before which constants had to be inputs as well
KNOWN_VERSION = 10  # format version that ONNX Runtime has read for years; later ones do not change the meaning of a graph


class OnnxParts:
    """Cuts parts of a task graph out of the ONNX model from which the graph was built.

    Ops are matched with the ONNX model by the names of tensors. This works for OpenVINO's ops, too: OpenVINO gives the name of
    an ONNX tensor to the output that has its value after conversion. So a part is a part of the ONNX model, whatever its ops
    were converted to, if all tensors at its borders have such names.

    A node with several outputs can be cut between them: each part then has the node, and computes the outputs that it needs.

    Args:
        proto: the ONNX model; it is changed.
        graph: the task graph of the model.
        outputs: outputs of the model.
        bounded: ops whose output sizes depend on the data.
        names: each tensor of the graph with its names, which include its names in the ONNX model.
        limits: least and largest sizes of the graph's tensors with open sizes.
        states: for each input of the ONNX model that became state, the output with its next value, and its sizes, None for open
            ones. The op that reads it has its name and kind ``ReadValue``; the op that writes it has kind ``Assign``, and
            ``/write`` after this name.
        unsized: whether parts leave the sizes of their inputs open. ONNX Runtime does not open a model with sizes that do not
            fit one of its branches, even if this branch is never taken.

    Attributes:
        graph: the task graph.
        content: digest of the ONNX model.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        graph: OpGraph,
        outputs: Iterable[TensorSpec],
        bounded: Iterable[str],
        names: Iterable[tuple[int, Collection[str]]],
        *,
        limits: Mapping[int, Limits] | None = None,
        states: Mapping[str, tuple[str, Sequence[int | None]]] | None = None,
        unsized: bool = False,
    ) -> None:
        self._unsized, self._limits, self._states = unsized, limits or {}, states or {}
        self.content = onnx_digest(proto)
        self._proto, self.graph = proto, graph
        self._outputs = {spec.op: spec for spec in outputs}
        self._initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in proto.graph.sparse_initializer}
        self._inputs = {value.name for value in proto.graph.input} - self._initializers.keys()
        nodes = proto.graph.node
        self._producer_of = {name: number for number, node in enumerate(nodes) for name in node.output if name}
        self._names: dict[int, str] = {}  # ONNX name of each tensor of the task graph
        self._aliases: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        drop_repeated_names(proto.graph)
        self._bounded = {graph.index[name] for name in bounded}
        own = self._inputs | self._producer_of.keys()
        for tensor, candidates in names:
            known = [name for name in candidates if name in own and name not in self._aliases]
            if not known or int(graph.tensor_op[tensor]) in self._bounded:
                continue
            # the first name replaces all others: so the order of the nodes stays topological
            first = min(known, key=lambda name: (self._producer_of.get(name, -1), name))
            self._aliases |= dict.fromkeys(known, first)
            if tensor not in self._limits:
                shapes |= dict.fromkeys(known, graph.tensor_shapes[tensor])
            if numpy_can_hold(graph.tensor_dtypes[tensor]):
                self._names[tensor] = first
        for node in nodes:
            fix_shape(node, shapes)
            _rename(node, self._aliases)
        self._reads = [reads(node) for node in nodes]

    @property
    def covers(self) -> bool:
        """True if every op can be cut out, as one of :meth:`kinds`."""
        return sum(len(atom) for atom, *_ in self._parts()) == len(self.graph)

    def together(self) -> tuple[tuple[str, ...], ...]:
        """Return sets of ops connected by tensors that the ONNX model does not have, because one node became several ops."""
        return tuple(tuple(self.graph.names[v] for v in atom) for atom in self._atoms() if len(atom) > 1)

    def kinds(self) -> Iterator[tuple[list[str], onnx.ModelProto]]:
        """Yield sets of ops that can be cut out and do the same computation, each with one example as an ONNX model.

        They have the same nodes with the same attributes, on tensors of the same types and ranks: a device with a kernel for
        one of them has it for all. An op is in a set with the ops from which it cannot be separated.

        Ops that read more tensors in the ONNX model than after conversion are left out.
        """
        alike: dict[object, tuple[list[str], tuple[list[int], list[int], list[int]]]] = {}
        for atom, enter, leave, described in self._parts():
            ops, _ = alike.setdefault(self._signature(*described), ([], (atom, enter, leave)))
            ops += [self.graph.names[v] for v in atom]
        for ops, example in alike.values():
            yield ops, self.cut(*example)

    def _parts(
        self, unread: list[tuple[int, set[str]]] | None = None
    ) -> Iterator[tuple[list[int], list[int], list[int], tuple[list[str], dict[str, int], set[int]]]]:
        """Yield the smallest parts that can be cut out: ops, tensors that enter and leave, and arguments of `_signature`.

        Args:
            unread: a list to which the other parts are appended: their last op, and the tensors that they read in the ONNX
                model only.
        """
        made_by = {name: int(self.graph.tensor_op[tensor]) for tensor, name in self._names.items()}
        edges, tensors = self.graph.edges, self.graph.edge_tensor
        for atom in self._atoms():
            inside = np.isin(edges, atom)
            enter = np.unique(tensors[inside[:, 1] & ~inside[:, 0]]).tolist()
            leave = np.unique(tensors[inside[:, 0] & ~inside[:, 1]]).tolist()
            if any(t not in self._names for t in enter):
                continue
            given = self._input_tensors(atom, enter) | self._states_read(atom)
            outputs = self._output_names(atom, leave)
            if not outputs:  # an input without readers can still be passed on
                leave, outputs = list(given.values()), list(given)
            ends = [name for name in outputs if name is not None]
            if not ends or len(ends) < len(outputs):
                continue
            ends += self._next_states(atom)
            numbers, missing, _ = self._needed(ends, given)
            if missing and unread is not None:
                outside = made_by.keys() - {name for name, op in made_by.items() if op in atom or op > max(atom)}
                unread.append((max(atom), self._needed(ends, given, outside)[1]))
            if not missing:
                yield atom, enter, leave, (ends, given, numbers)

    def reading_all(self) -> OnnxParts:
        """Return parts of a graph with more edges, so that ops also read the tensors that they read in the ONNX model only.

        OpenVINO may take a size from another tensor that has the same size, or as the size of the first input of a ``Reshape``.
        """
        unread: list[tuple[int, set[str]]] = []
        _ = [*self._parts(unread)]
        tensors, parts = {name: tensor for tensor, name in self._names.items()}, copy.copy(self)
        extra = [(tensors[name], v) for v, missing in unread for name in sorted(missing & tensors.keys())]
        parts.graph = _with_reads(self.graph, extra)
        return parts

    def _signature(self, ends: Iterable[str], given: Mapping[str, int], numbers: Iterable[int]) -> object:
        """Return a key of a part's computation, which does not depend on names, sizes and values of tensors."""
        position = {number: i for i, number in enumerate(sorted(numbers))}

        def described(name: str) -> object:
            if name in given:
                return self.graph.tensor_dtypes[given[name]], len(self.graph.tensor_shapes[given[name]])
            if name in self._initializers:
                return self._initializers[name].data_type, len(self._initializers[name].dims)
            if name in self._sparse:
                return self._sparse[name].values.data_type, len(self._sparse[name].dims)
            return position[self._producer_of[name]] if name else None

        nodes = [self._proto.graph.node[number] for number in position]
        return tuple(map(described, ends)), tuple(
            (
                *(node.domain, node.op_type, len(node.output)),
                tuple(sorted(attribute.SerializeToString() for attribute in node.attribute)),
                tuple(map(described, node.input)),
            )
            for node in nodes
        )

    def cut(self, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> onnx.ModelProto:
        """Return a part as an ONNX model, with static inputs except for open sizes.

        The arguments are as for :meth:`placeit.backends.base.Model.segment`. The last inputs of the part are the states that it
        reads, and its last outputs their next values.

        Raises:
            DeviceError: the part reads an ONNX tensor that is not among its inputs, or has a border where the ONNX model has no
                tensor. Both occur only for ops that are in no set of :meth:`kinds`.
        """
        graph = self.graph
        for tensor in (*enter, *leave):
            if tensor not in self._names:
                raise _inseparable(graph.names[graph.tensor_op[tensor]])
        entering = self._input_tensors(ops, enter)
        ends = [name for name in self._output_names(ops, leave) if name is not None]
        results = [v for v in ops if graph.kinds[v] == "Result"]
        if len(ends) != len(leave) + len(results):
            raise _inseparable(graph.names[results[0]])
        kept = self._states_read(ops)
        ends += self._next_states(ops)
        numbers, missing, constants = self._needed(ends, {*entering, *kept})
        if missing:
            raise DeviceError(
                f"ONNX Runtime cannot run the part of {graph.names[ops[0]]!r} alone: in the ONNX model it reads "
                f"'{min(missing)}', which it does not read after conversion by OpenVINO. Give these ops to devices that "
                "OpenVINO drives."
            )
        nodes = [_without(self._proto.graph.node[number], entering) for number in sorted(numbers)]
        sizes = {t: _sizes(graph.tensor_shapes[t], self._limits.get(t)) for t in (*entering.values(), *leave)}
        specs: list[tuple[str, Sequence[int | None] | None]] = [(graph.tensor_dtypes[t], sizes[t]) for t in leave]
        if self._unsized:
            sizes |= {t: [None] * len(sizes[t]) for t in entering.values()}
        for spec, v in ((self._outputs[graph.names[v]], v) for v in results):
            # a size that depends on the data is known after the computation
            makers = {int(graph.edges[e, 0]) for e in graph.predecessors.row(v)}
            specs.append((spec.dtype, None if self._bounded & {v, *makers} else _sizes(spec.shape, spec.limits)))
        specs += [(graph.tensor_dtypes[t], self._states[name][1]) for name, t in kept.items()][: len(ends) - len(specs)]
        # outputs get other names, since one tensor may be several outputs, or an input as well
        names = [f"placeit.output.{i}" for i in range(len(ends))]
        nodes += [helper.make_node("Identity", [end], [name]) for end, name in zip(ends, names, strict=True)]
        body = helper.make_graph(
            nodes,
            "segment",
            [
                *(_value(name, graph.tensor_dtypes[t], sizes[t]) for name, t in entering.items()),
                *(_value(name, graph.tensor_dtypes[t], self._states[name][1]) for name, t in kept.items()),
            ],
            [_value(name, *spec) for name, spec in zip(names, specs, strict=True)],
            initializer=[self._initializers[name] for name in sorted(constants & self._initializers.keys())],
            sparse_initializer=[self._sparse[name] for name in sorted(constants & self._sparse.keys())],
        )
        proto = self._proto
        version = min(max(proto.ir_version, _MIN_VERSION), KNOWN_VERSION)
        functions = list(proto.functions)
        part = helper.make_model(body, opset_imports=proto.opset_import, ir_version=version, functions=functions)
        note_folder(part, folder_of(proto))
        return part

    def _atoms(self) -> list[list[int]]:
        """Return the smallest sets of op numbers with ONNX tensors at all their borders."""
        edges = zip(self.graph.edges.tolist(), self.graph.edge_tensor.tolist(), strict=True)
        return connected(len(self.graph), [(u, v) for (u, v), tensor in edges if tensor not in self._names])

    def _tensors_of(self, op: int) -> list[int]:
        return [int(t) for t in np.flatnonzero(self.graph.tensor_op == op)]

    def _input_tensors(self, ops: Iterable[int], enter: Iterable[int]) -> dict[str, int]:
        """Return the input tensors of a part, by name: the ones that enter, and the model's inputs among its ops."""
        own = (t for v in ops if self.graph.kinds[v] == "Parameter" for t in self._tensors_of(v))
        return {self._names[t]: t for t in (*enter, *own) if t in self._names}

    def _states_read(self, ops: Iterable[int]) -> dict[str, int]:
        return {self.graph.names[v]: self._tensors_of(v)[0] for v in ops if self.graph.kinds[v] == "ReadValue"}

    def _next_states(self, ops: Iterable[int]) -> list[str]:
        """Return the names of the next values of the states that a part reads and writes, in the order of its reads."""
        written = {self.graph.names[v] for v in ops if self.graph.kinds[v] == "Assign"}
        names = (self._states[name][0] for name in self._states_read(ops) if f"{name}/write" in written)
        return [self._aliases.get(name, name) for name in names]

    def _output_names(self, ops: Iterable[int], leave: Iterable[int]) -> list[str | None]:
        """Return the names of a part's outputs, in the part's order; None for one that the ONNX model does not have."""
        ends = [self._names.get(tensor) for tensor in leave]
        for v in ops:
            if self.graph.kinds[v] == "Result":
                name = self._outputs[self.graph.names[v]].name
                name = self._aliases.get(name, name)
                known = name if name in self._producer_of or name in self._initializers else None
                read = self.graph.edge_tensor[self.graph.edges[:, 1] == v].tolist()
                ends.append(self._names.get(read[0], known) if read else known)
        return ends

    def _needed(
        self, ends: Iterable[str], given: Iterable[str], outside: Collection[str] = ()
    ) -> tuple[set[int], set[str], set[str]]:
        """Find the nodes and constants that compute tensors from given ones.

        Args:
            ends: the tensors to compute.
            given: tensors whose values are given.
            outside: tensors that are not to be computed, but count as missing.

        Returns:
            Numbers of nodes, names of missing tensors, and names of constants.
        """
        stack, seen = list(ends), {*given, ""}
        nodes, missing, constants = set[int](), set[str](), set[str]()
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            number = self._producer_of.get(name)
            if name in outside or (number is None and name not in self._initializers and name not in self._sparse):
                missing.add(name)
            elif number is None:
                constants.add(name)
            elif number not in nodes:
                nodes.add(number)
                stack += self._reads[number]
        return nodes, missing, constants


def _inseparable(op: str) -> DeviceError:
    return DeviceError(
        f"ONNX Runtime cannot run a part that begins or ends at op '{op}': the ONNX model has no tensor there. Give the op to "
        "a device that OpenVINO drives, or group the model with keep_together=model.together."
    )


def _with_reads(graph: OpGraph, extra: Sequence[tuple[int, int]]) -> OpGraph:
    """Return a graph in which ops read more tensors, given as pairs of tensor and op; pairs against the order are left out."""
    extra = [(tensor, v) for tensor, v in extra if graph.tensor_op[tensor] < v]
    return replace(
        graph,
        edges=np.array([*graph.edges.tolist(), *((graph.tensor_op[tensor], v) for tensor, v in extra)], np.int32),
        edge_tensor=np.array([*graph.edge_tensor.tolist(), *(tensor for tensor, _ in extra)], np.int32),
    )


def _sizes(shape: Sequence[int], limits: Limits | None) -> Sequence[int | None]:
    """Return a tensor's sizes, with None for open ones."""
    return shape if limits is None else [low if low == high else None for low, high in limits]


def _value(name: str, dtype: str, shape: Sequence[int | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def drop_repeated_names(graph: onnx.GraphProto) -> None:
    """Remove the name of a node if an earlier node has it, since ONNX Runtime requires unique names."""
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)
        for body in _bodies(node):
            drop_repeated_names(body)


def _without(node: onnx.NodeProto, given: Collection[str]) -> onnx.NodeProto:
    """Return a copy of a node with unused names for those outputs that are given; the node itself if it has none."""
    if not any(name in given for name in node.output):
        return node
    renamed = onnx.NodeProto()
    renamed.CopyFrom(node)
    renamed.output[:] = [f"placeit.unused.{name}" if name in given else name for name in node.output]
    return renamed


def fix_shape(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace a ``Shape`` node of a tensor with a known shape by a constant, as in the task graph."""
    if node.op_type != "Shape" or node.domain not in ("", "ai.onnx") or node.input[0] not in shapes:
        return
    limits = {attribute.name: attribute.i for attribute in node.attribute}
    sizes = np.array(shapes[node.input[0]][limits.get("start", 0) : limits.get("end")], np.int64)
    node.CopyFrom(helper.make_node("Constant", [], node.output, name=node.name, value=numpy_helper.from_array(sizes)))


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename the inputs of a node and inside its bodies, whose own names differ from outer ones by the rules of ONNX."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for body in _bodies(node):
        for inner in body.node:
            _rename(inner, names)
        for value in body.output:
            value.name = names.get(value.name, value.name)


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names of the tensors that a node reads, including outer tensors that its bodies read."""
    names = set(node.input)
    for body in _bodies(node):
        inner = set().union(*map(reads, body.node), {value.name for value in body.output})
        inner -= {name for inside in body.node for name in inside.output}
        inner -= {value.name for value in (*body.input, *body.initializer)}
        inner -= {tensor.values.name for tensor in body.sparse_initializer}
        names |= inner
    return names - {""}
