"""Placement problems: a graph, a cluster and costs."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core import problem_checks as checks
from placeit.core.errors import ProblemError
from placeit.core.files import write_text
from placeit.core.graph import Csr, csr
from placeit.core.placement import Placement
from placeit.core.records import read_json
from placeit.core.weights import Shared, held_bytes

__all__ = ["CostFunction", "Problem", "once_per_problem"]

_Result = TypeVar("_Result")

CostFunction: TypeAlias = Callable[[NDArray[np.int32]], NDArray[np.float64]]
"""``cost(placements: int32[B, V]) -> float64[B]``, seconds; ``inf`` for an infeasible placement, NaN for an unmeasured one.

A simulator and a measured cost (:class:`placeit.MeasuredCost`) have the same interface.
"""


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a placer: ``V`` ops, ``E`` edges, ``D`` devices, and all costs.

    Build one with :meth:`from_arrays`, which checks it.

    Attributes:
        compute: ``float64[V, D]``, seconds; ``inf`` where an op cannot run.
        edges: ``int32[E, 2]``, producer and consumer. Edge order matters: of several consumers that become runnable at the
            same moment, the one whose edge comes first is queued first.
        edge_bytes: ``float64[E]``.
        edge_tensor: ``int32[E]``; edges with one number move the same tensor of the same producer, which crosses to a
            given device once.
        bandwidth: ``float64[D, D]``, bytes per second, ``inf`` on the diagonal.
        latency: ``float64[D, D]``, seconds, zero on the diagonal.
        cut: ``float64[E, D]``, seconds that a device spends on a tensor because it crosses the device's border (a layout
            conversion, a store that fusion would have spared). Charged to the producer once per tensor that has a remote
            consumer, and to each consumer once per tensor that comes from elsewhere.
        param_bytes: ``float64[V]``, memory that an op's weights, and the states that it reads, take where it is placed. Of
            several ops that read a weight, the first counts it.
        memory: ``float64[D]``, bytes that a device holds; ``inf`` if unbounded.
        conflicts: ``bool[D, D]``, symmetric: devices that never run at the same time, because they share hardware (``CPU@0-1``
            and ``CPU@0``). False on the diagonal.
        host: ``float64[D + 1]``, seconds of a request besides the work of devices and links: for the call, for waking devices,
            and for the answer. Entry ``d`` is for placements of all ops on device ``d``, the last one for placements on several
            devices. Simulators add it to the makespan once.
        op_names: unique names, ``V`` of them.
        device_names: unique names, ``D`` of them.
        graph_hash: identity of the task graph, empty if the problem has no model behind it.
        kinds: name of each op's computation, such as ``Convolution``, ``V`` of them; empty if unknown.
        output_shapes: shape of the largest tensor that each op gives to others, ``V`` of them; None if unknown, or if the op
            gives nothing to others.
        order: ``int32[V]``, a topological order.
        shared: weights that several ops read. A device holds such a weight once, even if it does not run the first of these
            ops, which counts the weight in ``param_bytes``.
    """

    compute: NDArray[np.float64]
    edges: NDArray[np.int32]
    edge_bytes: NDArray[np.float64]
    edge_tensor: NDArray[np.int32]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]
    cut: NDArray[np.float64]
    param_bytes: NDArray[np.float64]
    memory: NDArray[np.float64]
    conflicts: NDArray[np.bool_]
    host: NDArray[np.float64]
    op_names: tuple[str, ...]
    device_names: tuple[str, ...]
    graph_hash: str
    kinds: tuple[str, ...]
    output_shapes: tuple[tuple[int, ...] | None, ...]
    order: NDArray[np.int32]
    shared: Shared = ()

    def __repr__(self) -> str:
        return f"<Problem: {len(self)} ops, {len(self.edges)} edges, on {', '.join(self.device_names)}>"

    @classmethod
    def from_arrays(
        cls,
        compute: ArrayLike,
        edges: ArrayLike,
        edge_bytes: ArrayLike,
        bandwidth: ArrayLike,
        latency: ArrayLike,
        *,
        edge_tensor: ArrayLike | None = None,
        cut: ArrayLike | None = None,
        param_bytes: ArrayLike | None = None,
        memory: ArrayLike | None = None,
        conflicts: ArrayLike | None = None,
        host: ArrayLike | None = None,
        op_names: Sequence[str] | None = None,
        device_names: Sequence[str] | None = None,
        graph_hash: str = "",
        kinds: Sequence[str] | None = None,
        output_shapes: Sequence[Sequence[int] | None] | None = None,
        shared: Shared = (),
    ) -> Problem:
        """Build and check a problem; the class states shapes and units. Defaults are zero, unbounded, numbered or unknown.

        Devices do not conflict unless ``conflicts`` says so.

        Raises:
            ProblemError: wrong shapes, NaN or negative costs or sizes, a link without bandwidth, a cycle, inconsistent tensors,
                conflicts that are not mutual.
            InfeasibleError: some op can run on no device.
        """
        compute = checks.floats("compute", compute, (None, None), infinite=True)
        ops, devices = compute.shape
        if ops == 0 or devices == 0:
            raise ProblemError(f"A problem needs at least one op and one device; 'compute' has shape {compute.shape}.")
        edge_array = checks.edges(edges, ops)
        count = len(edge_array)
        names = tuple(op_names) if op_names is not None else tuple(f"op{v}" for v in range(ops))
        dev_names = tuple(device_names) if device_names is not None else tuple(f"dev{d}" for d in range(devices))
        for what, values, size in (("op_names", names, ops), ("device_names", dev_names, devices)):
            checks.check_length(what, values, size)
            if len(set(values)) != size:
                raise ProblemError(f"'{what}' contains a name twice; names must be unique.")
        tensor = np.arange(count, dtype=np.int64) if edge_tensor is None else checks.ints("edge_tensor", edge_tensor, (count,))
        sizes = checks.floats("edge_bytes", edge_bytes, (count,))
        _, first, inverse = np.unique(tensor, return_index=True, return_inverse=True)
        same = first[inverse.reshape(-1)]  # for each edge, the first edge that moves the same tensor
        if not (np.array_equal(edge_array[same, 0], edge_array[:, 0]) and np.array_equal(sizes[same], sizes)):
            raise ProblemError("Edges with the same 'edge_tensor' must have the same producer and the same bytes.")
        problem = cls(
            compute=compute,
            edges=edge_array,
            edge_bytes=sizes,
            edge_tensor=inverse.reshape(-1).astype(np.int32),
            bandwidth=checks.bandwidth(bandwidth, dev_names),
            latency=checks.floats("latency", latency, (devices, devices), diagonal=0.0),
            cut=checks.floats("cut", cut, (count, devices), default=0.0),
            param_bytes=checks.floats("param_bytes", param_bytes, (ops,), default=0.0),
            memory=checks.floats("memory", memory, (devices,), default=np.inf, infinite=True),
            conflicts=np.zeros((devices, devices), bool) if conflicts is None else checks.conflicts(conflicts, dev_names),
            host=checks.floats("host", host, (devices + 1,), default=0.0),
            op_names=names,
            device_names=dev_names,
            graph_hash=graph_hash,
            kinds=("",) * ops if kinds is None else checks.kinds(kinds, names),
            output_shapes=(None,) * ops if output_shapes is None else checks.shapes(output_shapes, names),
            order=checks.order(edge_array, ops, names),
            shared=checks.shared(shared, ops),
        )
        checks.runnable(compute, names, dev_names)
        for value in vars(problem).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        return problem

    def __len__(self) -> int:
        return int(self.compute.shape[0])

    @property
    def devices(self) -> int:
        """Number of devices, ``D``."""
        return int(self.compute.shape[1])

    @cached_property
    def successors(self) -> Csr:
        """Out-edges of each op, in edge order."""
        return csr(np.ascontiguousarray(self.edges[:, 0]), len(self))

    @cached_property
    def predecessors(self) -> Csr:
        """In-edges of each op, in edge order."""
        return csr(np.ascontiguousarray(self.edges[:, 1]), len(self))

    @cached_property
    def feasible(self) -> NDArray[np.bool_]:
        """``bool[V, D]``: whether an op can run on a device."""
        return np.isfinite(self.compute)

    @cached_property
    def single_devices(self) -> tuple[int, ...]:
        """Numbers of the devices that can run the whole graph alone and hold its weights."""
        fits = self.feasible.all(axis=0) & (self.param_bytes.sum() <= self.memory)
        return tuple(int(d) for d in np.flatnonzero(fits))

    @cached_property
    def critical_path(self) -> float:
        """Length of the longest path in seconds, each op on its fastest device, without transfers: a bound for makespans.

        It is the denominator of the schedule length ratio (Topcuoglu et al. 2002, equation 11; GiPH, section 5).
        """
        fastest = self.compute.min(axis=1)
        reached = fastest.copy()
        for v in self.order.tolist():
            for w in self.edges[self.successors.row(v), 1].tolist():
                reached[w] = max(reached[w], reached[v] + fastest[w])
        return float(reached.max())

    @cached_property
    def key(self) -> str:
        """Identity of the costs, 32 hexadecimal digits; equal for equal content, in any process and on any machine.

        It covers everything that decides what a placement of numbered devices costs and whether it is feasible: ``compute``,
        ``edges`` in their order, ``edge_bytes``, ``edge_tensor``, ``bandwidth``, ``latency``, ``cut``, ``param_bytes``,
        ``memory``, ``conflicts``, ``host`` and ``shared``, to the last bit. Names, kinds, shapes and ``graph_hash`` do not
        count.
        """
        digest = hashlib.sha256(repr(self.compute.shape).encode())
        for name in _ARRAYS:
            array = getattr(self, name)
            # adding zero turns -0.0 into 0.0
            digest.update(array.astype("<i4").tobytes() if array.dtype.kind == "i" else (array + 0.0).astype("<f8").tobytes())
        if self.conflicts.any():
            digest.update(self.conflicts.tobytes())
        if self.host.any():
            digest.update((self.host + 0.0).astype("<f8").tobytes())
        if self.shared:
            digest.update(repr(self.shared).encode())
        return digest.hexdigest()[:32]

    def held(self, placements: NDArray[Any]) -> NDArray[np.float64]:
        """Return the bytes of weights and states that each device holds under placements, ``int[B, V] -> float64[B, D]``."""
        return held_bytes(self.param_bytes, self.shared, placements, self.devices)

    def comm(self, edge: int) -> NDArray[np.float64]:
        """Return the seconds to move an edge's tensor, ``float64[D, D]`` by source and destination, cut costs included."""
        seconds: NDArray[np.float64] = (
            self.latency + self.edge_bytes[edge] / self.bandwidth + self.cut[edge][:, None] + self.cut[edge][None, :]
        )
        np.fill_diagonal(seconds, 0.0)
        return seconds

    def check(self, placement: ArrayLike) -> NDArray[np.int32]:
        """Return a placement as ``int32[V]`` after checking it.

        Raises:
            PlacementError: wrong length, unknown device, an op where it cannot run, weights that do not fit.
        """
        devices = checks.device_numbers("A placement of this problem is", placement, len(self), self.devices)
        bad = np.flatnonzero(~self.feasible[np.arange(len(self)), devices])
        if len(bad):
            v = int(bad[0])
            raise checks.cannot_run(self.op_names[v], devices[v], self.feasible[v], self.device_names)
        checks.weights_fit(self.held(devices[None])[0], self.memory, self.device_names)
        return devices

    def placement(self, devices: ArrayLike) -> Placement:
        """Wrap checked device numbers as a :class:`Placement` of this problem."""
        return Placement(self.op_names, self.check(devices), self.device_names, self.graph_hash)

    def to_json(self, path: str | Path, *, sync: bool = True) -> None:
        """Write the problem as JSON, version 2, with null for infinite values. ``sync``: wait until the disk has stored it.

        ``conflicts`` is written only if some devices conflict, ``host`` only if it is not zero, ``shared`` only if
        several ops read one weight.
        """
        fields = {
            "format": "placeit-problem",
            "version": 2,
            "key": self.key,
            "graph": self.graph_hash,
            "ops": list(self.op_names),
            "devices": list(self.device_names),
            "kinds": list(self.kinds) if any(self.kinds) else None,
            "output_shapes": None if set(self.output_shapes) == {None} else self.output_shapes,
        } | {name: _jsonable(getattr(self, name)) for name in _ARRAYS}
        if self.conflicts.any():
            fields["conflicts"] = self.conflicts.tolist()
        if self.host.any():
            fields["host"] = self.host.tolist()
        if self.shared:
            fields["shared"] = self.shared
        write_text(Path(path), json.dumps(fields, allow_nan=False) + "\n", sync=sync)

    @classmethod
    def from_json(cls, path: str | Path) -> Problem:
        """Read a problem that :meth:`to_json` wrote, or a hand-written file with the arguments of :meth:`from_arrays`.

        A file without a version counts as version 1. That version had no key, kinds and output shapes, which are optional.

        Raises:
            FileError: the file cannot be read, is no JSON object of this format, or has another version.
            ProblemError: the file holds no problem, or its ``key`` does not match its costs.
            InfeasibleError: some op can run on no device.
        """
        data = read_json(Path(path), "placeit-problem", _VERSIONS)
        known = {"format", "version", "key", "graph", *_NAMES, "output_shapes", "conflicts", "host", "shared", *_ARRAYS}
        checks.keys(path, data, known, {"compute", "edges", "edge_bytes", "bandwidth", "latency"}, _NAMES)
        arrays: dict[str, Any] = {name: _from_jsonable(data[name]) for name in _ARRAYS if data.get(name) is not None}
        texts: dict[str, Any] = {argument: data.get(name) for name, argument in _NAMES.items()}
        try:
            problem = cls.from_arrays(
                **arrays,
                **texts,
                conflicts=data.get("conflicts"),
                host=data.get("host"),
                shared=data.get("shared") or (),
                output_shapes=data.get("output_shapes"),
                graph_hash=str(data.get("graph", "")),
            )
        except ProblemError as error:
            raise type(error)(f"{path}: {error}") from None
        if data.get("key") not in (None, problem.key):
            raise ProblemError(
                f"{path}: its costs are not those that its key was made of ({data['key']}; theirs is {problem.key}). Take the "
                "file as it was written, or delete its 'key' if the costs were changed on purpose."
            )
        return problem


_VERSIONS = (1, 2)
_NAMES = {"ops": "op_names", "devices": "device_names", "kinds": "kinds"}
_ARRAYS = ("compute", "edges", "edge_bytes", "bandwidth", "latency", "edge_tensor", "cut", "param_bytes", "memory")


def once_per_problem(function: Callable[[Problem], _Result]) -> Callable[[Problem], _Result]:
    """Return a function that is computed once for each problem, and whose results exist as long as their problems."""
    results: WeakKeyDictionary[Problem, _Result] = WeakKeyDictionary()

    @functools.wraps(function)
    def cached(problem: Problem) -> _Result:
        try:
            return results[problem]
        except KeyError:
            return results.setdefault(problem, function(problem))

    return cached


def _jsonable(array: NDArray[Any]) -> Any:
    if array.dtype.kind == "f":
        boxed = array.astype(object)
        boxed[np.isinf(array)] = None
        return boxed.tolist()
    return array.tolist()


def _from_jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_jsonable(item) for item in value]
    return float("inf") if value is None else value
