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
from placeit.core.errors import DeviceError
from placeit.core.graph import OpGraph
from placeit.core.sizes import Limits

__all__ = ["KNOWN_VERSION", "OnnxParts", "drop_repeated_names", "fix_shape", "reads"]

_OWN_CONSTANTS = 4  # version of the format before which constants had to be inputs as well
KNOWN_VERSION = 10  # format version that ONNX Runtime has read for years; later ones change nothing about a graph's computation


class OnnxParts:
    """Object that cuts parts of a task graph out of the ONNX model from which the graph was made.

    Ops are matched with the ONNX model by the names of tensors. This works for OpenVINO's ops, too, as OpenVINO passes the
    name of an ONNX tensor on to the op that has its value after conversion. So any part at whose borders every tensor has such
    a name is a part of the ONNX model, whatever its ops were converted to.

    A node with several outputs may be cut between them: each part then has the node, and computes the outputs that it needs.

    Args:
        proto: the ONNX model; it is changed.
        graph: the task graph of the model.
        outputs: outputs of the model.
        bounded: ops whose output sizes depend on the data.
        names: each tensor of the graph with its names, among them its names in the ONNX model.
        limits: least and largest sizes of the graph's tensors with open sizes.
        states: for each input of the ONNX model that became state, the output with its next value, and its sizes, None for open
            ones. The ops that read it and write it have its name, and kinds ``ReadValue`` and ``Assign``.
        unsized: whether parts leave the sizes of their inputs open. ONNX Runtime does not open a model with sizes that do not
            fit one of its branches, even if its inputs never take this branch.

    Attributes:
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
        self._proto, self._graph = proto, graph
        self._outputs = {spec.op: spec for spec in outputs}
        self._initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in proto.graph.sparse_initializer}
        self._inputs = {value.name for value in proto.graph.input} - self._initializers.keys()
        nodes = proto.graph.node
        self._maker = {name: number for number, node in enumerate(nodes) for name in node.output if name}
        self._name: dict[int, str] = {}  # ONNX name of each tensor of the task graph
        self._alias: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        drop_repeated_names(proto.graph)
        self._bounded = {graph.index[name] for name in bounded}
        for tensor, called in names:
            known = [name for name in called if (name in self._inputs or name in self._maker) and name not in self._alias]
            if not known or int(graph.tensor_op[tensor]) in self._bounded:
                continue
            # the first name can stand for all others, and keeps the order of the nodes topological
            first = min(known, key=lambda name: (self._maker.get(name, -1), name))
            self._alias |= dict.fromkeys(known, first)
            if tensor not in self._limits:
                shapes |= dict.fromkeys(known, graph.tensor_shapes[tensor])
            if numpy_can_hold(graph.tensor_dtypes[tensor]):
                self._name[tensor] = first
        for node in nodes:
            fix_shape(node, shapes)
            _rename(node, self._alias)
        self._reads = [reads(node) for node in nodes]

    def _declared(self, tensor: int) -> Sequence[int | None]:
        shape = self._graph.tensor_shapes[tensor]
        return [None] * len(shape) if self._unsized else _sizes(shape, self._limits.get(tensor))

    @property
    def graph(self) -> OpGraph:
        """The task graph."""
        return self._graph

    @property
    def covers(self) -> bool:
        """True if every op can be cut out, as one of :meth:`kinds`."""
        return sum(len(atom) for atom, *_ in self._parts()) == len(self._graph)

    def together(self) -> tuple[tuple[str, ...], ...]:
        """Return sets of ops connected by tensors that the ONNX model does not have, because one node became several ops."""
        return tuple(tuple(self._graph.names[v] for v in atom) for atom in self._atoms() if len(atom) > 1)

    def kinds(self) -> Iterator[tuple[list[str], onnx.ModelProto]]:
        """Yield sets of ops that can be cut out of the ONNX model and compute alike, each with an example as a model.

        Ops are alike if they are the same nodes, with the same attributes, on tensors of the same types and ranks: a device
        with a kernel for one of them has it for all. An op comes together with the ops from which it cannot be separated.

        Ops that read more in the ONNX model than after conversion are missing.
        """
        alike: dict[object, tuple[list[str], tuple[list[int], list[int], list[int]]]] = {}
        for atom, enter, leave, described in self._parts():
            ops, _ = alike.setdefault(self._signature(*described), ([], (atom, enter, leave)))
            ops += [self._graph.names[v] for v in atom]
        for ops, example in alike.values():
            yield ops, self.cut(*example)

    def _parts(
        self, unread: list[tuple[int, set[str]]] | None = None
    ) -> Iterator[tuple[list[int], list[int], list[int], tuple[list[str], dict[str, int], set[int]]]]:
        """Yield the smallest parts that can be cut out: ops, tensors that enter and leave, and arguments of `_signature`.

        Append the last op of each other part to ``unread``, with the tensors that it reads in the ONNX model only.
        """
        made_by = {name: int(self._graph.tensor_op[tensor]) for tensor, name in self._name.items()}
        edges, tensors = self._graph.edges, self._graph.edge_tensor
        for atom in self._atoms():
            inside = np.isin(edges, atom)
            enter = np.unique(tensors[inside[:, 1] & ~inside[:, 0]]).tolist()
            leave = np.unique(tensors[inside[:, 0] & ~inside[:, 1]]).tolist()
            if any(t not in self._name for t in enter):
                continue
            given = self._given(atom, enter) | self._kept(atom)
            made = self._ends(atom, leave)
            if not made:  # an input without readers can still be passed on
                leave, made = list(given.values()), list(given)
            ends = [name for name in made if name is not None]
            if not ends or len(ends) < len(made):
                continue
            ends += self._following(atom)
            numbers, missing, _ = self._behind(ends, given)
            if missing and unread is not None:
                outside = made_by.keys() - {name for name, op in made_by.items() if op in atom or op > max(atom)}
                unread.append((max(atom), self._behind(ends, given, outside)[1]))
            if not missing:
                yield atom, enter, leave, (ends, given, numbers)

    def reading_all(self) -> OnnxParts:
        """Return the parts of a graph whose ops also read the tensors that they read in the ONNX model only.

        OpenVINO may take a size from another tensor that has the same size, or as the size of the first input of a ``Reshape``.
        """
        unread: list[tuple[int, set[str]]] = []
        for _ in self._parts(unread):
            pass
        tensors, made = {name: tensor for tensor, name in self._name.items()}, copy.copy(self)
        more = [(tensors[name], v) for v, missing in unread for name in sorted(missing & tensors.keys())]
        made._graph = _reading(self._graph, more)
        return made

    def _signature(self, ends: Iterable[str], given: Mapping[str, int], numbers: Iterable[int]) -> object:
        """Return a key of a part's computation, without names and sizes of tensors and values of constants."""
        place = {number: i for i, number in enumerate(sorted(numbers))}

        def described(name: str) -> object:
            if name in given:
                return self._graph.tensor_dtypes[given[name]], len(self._graph.tensor_shapes[given[name]])
            if name in self._initializers:
                return self._initializers[name].data_type, len(self._initializers[name].dims)
            if name in self._sparse:
                return self._sparse[name].values.data_type, len(self._sparse[name].dims)
            return place[self._maker[name]] if name else None

        nodes = [self._proto.graph.node[number] for number in place]
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

        Args:
            ops: op numbers of the part, ascending.
            enter: tensors that it reads from outside, its first inputs; the model's own inputs among ``ops`` follow.
            leave: tensors that other parts read, its first outputs; the model's own outputs among ``ops`` follow.

        Returns:
            The part. Its last inputs are the states that it reads, by name, and its last outputs their next values.

        Raises:
            DeviceError: the part reads an ONNX tensor that is not among these inputs, or has a border where the ONNX model has
                no tensor; both occur only for ops outside of :meth:`kinds`.
        """
        graph = self._graph
        for tensor in (*enter, *leave):
            if tensor not in self._name:
                raise _inseparable(graph.names[graph.tensor_op[tensor]])
        entering = self._given(ops, enter)
        ends = [name for name in self._ends(ops, leave) if name is not None]
        results = [v for v in ops if graph.kinds[v] == "Result"]
        if len(ends) != len(leave) + len(results):
            raise _inseparable(graph.names[results[0]])
        kept = self._kept(ops)
        ends += self._following(ops)
        numbers, missing, constants = self._behind(ends, {*entering, *kept})
        if missing:
            raise DeviceError(
                f"ONNX Runtime cannot run the part of {graph.names[ops[0]]!r} by itself: in the ONNX model it reads "
                f"'{min(missing)}', which it does not read after conversion by OpenVINO. Give these ops to devices that "
                "OpenVINO drives."
            )
        nodes = [_without(self._proto.graph.node[number], entering) for number in sorted(numbers)]
        specs: list[tuple[str, Sequence[int | None] | None]] = [
            (graph.tensor_dtypes[t], _sizes(graph.tensor_shapes[t], self._limits.get(t))) for t in leave
        ]
        for spec, v in ((self._outputs[graph.names[v]], v) for v in results):
            # a size that depends on the data is known after the computation
            specs.append((spec.dtype, None if self._bounded & {v, *self._read_by(v)} else _sizes(spec.shape, spec.limits)))
        specs += [(graph.tensor_dtypes[t], self._states[name][1]) for name, t in kept.items()][: len(ends) - len(specs)]
        # outputs get other names, since one tensor may be several outputs, or an input as well
        names = [f"placeit.output.{place}" for place in range(len(ends))]
        nodes += [helper.make_node("Identity", [end], [name]) for end, name in zip(ends, names, strict=True)]
        body = helper.make_graph(
            nodes,
            "segment",
            [
                *(_value(name, graph.tensor_dtypes[t], self._declared(t)) for name, t in entering.items()),
                *(_value(name, graph.tensor_dtypes[t], self._states[name][1]) for name, t in kept.items()),
            ],
            [_value(name, *spec) for name, spec in zip(names, specs, strict=True)],
            initializer=[self._initializers[name] for name in sorted(constants & self._initializers.keys())],
            sparse_initializer=[self._sparse[name] for name in sorted(constants & self._sparse.keys())],
        )
        proto = self._proto
        made = helper.make_model(
            body,
            opset_imports=proto.opset_import,
            ir_version=min(max(proto.ir_version, _OWN_CONSTANTS), KNOWN_VERSION),
            functions=list(proto.functions),
        )
        note_folder(made, folder_of(proto))
        return made

    def _atoms(self) -> list[list[int]]:
        """Return sets of op numbers that the ONNX model separates by tensors."""
        root = list(range(len(self._graph)))

        def find(v: int) -> int:
            while root[v] != v:
                root[v] = v = root[root[v]]
            return v

        for (u, v), tensor in zip(self._graph.edges.tolist(), self._graph.edge_tensor.tolist(), strict=True):
            if tensor not in self._name:
                root[find(v)] = find(u)
        atoms: dict[int, list[int]] = {}
        for v in range(len(root)):
            atoms.setdefault(find(v), []).append(v)
        return list(atoms.values())

    def _read_by(self, op: int) -> list[int]:
        """Return the ops whose tensors an op reads."""
        return [int(u) for u in self._graph.edges[self._graph.edges[:, 1] == op, 0]]

    def _made_by(self, op: int) -> list[int]:
        return [int(t) for t in np.flatnonzero(self._graph.tensor_op == op)]

    def _given(self, ops: Iterable[int], enter: Iterable[int]) -> dict[str, int]:
        """Return the tensors given to a part, by name: the ones that enter, and the model's inputs among its ops."""
        made = (t for v in ops if self._graph.kinds[v] == "Parameter" for t in self._made_by(v))
        return {self._name[t]: t for t in (*enter, *made) if t in self._name}

    def _kept(self, ops: Iterable[int]) -> dict[str, int]:
        """Return the states that a part reads, by name."""
        return {self._graph.names[v]: self._made_by(v)[0] for v in ops if self._graph.kinds[v] == "ReadValue"}

    def _following(self, ops: Iterable[int]) -> list[str]:
        """Return the names of the next values of the states that a part reads and writes, in the order of its reads."""
        written = {self._graph.names[v] for v in ops if self._graph.kinds[v] == "Assign"}
        names = (self._states[name][0] for name in self._kept(ops) if f"{name}/write" in written)
        return [self._alias.get(name, name) for name in names]

    def _ends(self, ops: Iterable[int], leave: Iterable[int]) -> list[str | None]:
        """Return the names of a part's tensors and model outputs; None for one that the ONNX model does not have."""
        ends = [self._name.get(tensor) for tensor in leave]
        for v in ops:
            if self._graph.kinds[v] == "Result":
                name = self._outputs[self._graph.names[v]].name
                name = self._alias.get(name, name)
                read = self._graph.edge_tensor[self._graph.edges[:, 1] == v].tolist()
                known = name in self._maker or name in self._initializers
                ends.append(self._name.get(read[0], name if known else None) if read else name if known else None)
        return ends

    def _behind(
        self, ends: Iterable[str], given: Iterable[str], outside: Collection[str] = ()
    ) -> tuple[set[int], set[str], set[str]]:
        """Follow tensors back to given ones: return the nodes on the way, inputs and tensors ``outside``, and constants."""
        waiting, seen = list(ends), set(given)
        nodes: set[int] = set()
        missing: set[str] = set()
        constants: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or not name:
                continue
            seen.add(name)
            if name in outside:
                missing.add(name)
            elif name in self._maker:
                if self._maker[name] not in nodes:
                    nodes.add(self._maker[name])
                    waiting += self._reads[self._maker[name]]
            elif name in self._initializers or name in self._sparse:
                constants.add(name)
            else:
                missing.add(name)
        return nodes, missing, constants


def _inseparable(op: str) -> DeviceError:
    return DeviceError(
        f"ONNX Runtime cannot run a part that begins or ends at op '{op}': the ONNX model has no tensor there. Give the op to "
        "a device that OpenVINO drives, or group the model with keep_together=model.together."
    )


def _reading(graph: OpGraph, more: Sequence[tuple[int, int]]) -> OpGraph:
    """Return a graph in which ops read more tensors, given as tensors and ops, if these are made before."""
    more = [(tensor, v) for tensor, v in more if graph.tensor_op[tensor] < v]
    return replace(
        graph,
        edges=np.array([*graph.edges.tolist(), *((graph.tensor_op[tensor], v) for tensor, v in more)], np.int32),
        edge_tensor=np.array([*graph.edge_tensor.tolist(), *(tensor for tensor, _ in more)], np.int32),
    )


def _sizes(shape: Sequence[int], limits: Limits | None) -> Sequence[int | None]:
    """Return a tensor's sizes; None for open ones."""
    return shape if limits is None else [low if low == high else None for low, high in limits]


def _value(name: str, dtype: str, shape: Sequence[int | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def drop_repeated_names(graph: onnx.GraphProto) -> None:
    """Remove names of nodes that an earlier node has, since ONNX Runtime requires different names."""
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)
        for body in _bodies(node):
            drop_repeated_names(body)


def _without(node: onnx.NodeProto, given: Collection[str]) -> onnx.NodeProto:
    """Return a node without those outputs that are given; the node itself if none is."""
    if not any(name in given for name in node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = [f"placeit.unused.{name}" if name in given else name for name in node.output]
    return copy


def fix_shape(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace a node that returns a known shape by a constant, as in the task graph."""
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
    """Rename the inputs of a node, also inside its bodies, where names differ from outer ones by the rules of ONNX."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for body in _bodies(node):
        for inner in body.node:
            _rename(inner, names)
        for value in body.output:
            value.name = names.get(value.name, value.name)


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names of the tensors that a node reads, also inside its bodies."""
    names = set(node.input)
    for body in _bodies(node):
        inner = set().union(*map(reads, body.node), {value.name for value in body.output})
        inner -= {name for made in body.node for name in made.output}
        inner -= {value.name for value in (*body.input, *body.initializer)}
        inner -= {tensor.values.name for tensor in body.sparse_initializer}
        names |= inner
    return names - {""}
