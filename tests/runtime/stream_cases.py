"""Random models for stream executors, with what they must compute."""

import weakref
import zlib
from dataclasses import dataclass

import numpy as np

from placeit.backends.base import TensorSpec
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.graph import OpGraph
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.runtime import Runtime
from placeit.testing.problems import random_problem
from tests.fake_accelerator import FakeAccelerator


class Model:
    """The ends of a model that is nothing but a graph."""

    together = ()
    channels_last = stateful = frozenset()
    limits = {}  # noqa: RUF012
    uniform = placed = False

    def check_sizes(self, _):
        """All of them are fixed."""

    def function(self, *_):
        """Segments compute nothing that could be equal."""

    def __init__(self, graph):
        producer = {int(v): int(t) for (_, v), t in zip(graph.edges, graph.edge_tensor, strict=True)}
        self.inputs, self.outputs = [], []
        for v, (name, kind) in enumerate(zip(graph.names, graph.kinds, strict=True)):
            if kind == "Parameter":
                t = graph.tensor_op.tolist().index(v)
                self.inputs.append(TensorSpec(f"in_{name}", name, graph.tensor_shapes[t], graph.tensor_dtypes[t]))
            if kind == "Result":
                t = producer[v]
                self.outputs.append(TensorSpec(f"out_{name}", name, graph.tensor_shapes[t], graph.tensor_dtypes[t]))


def evaluate(graph, ops, known):
    """Compute ops from the tensors that are known, by an arithmetic that tells any two tensors apart."""
    known = dict(known)
    for v in ops:
        if graph.kinds[v] in ("Parameter", "Result"):
            continue
        read = [known[int(t)] for (_, w), t in zip(graph.edges, graph.edge_tensor, strict=True) if w == v]
        for t in np.flatnonzero(graph.tensor_op == v).tolist():
            salt = zlib.crc32(f"{graph.names[v]} {t}".encode()) % 997
            # what cannot be read gives some other number
            sums = [int(np.nan_to_num(value, nan=7.0).astype(np.int64).sum()) for value in read]
            total = (salt + sum((i + 2) * value for i, value in enumerate(sums))) % 8191
            pattern = np.arange(np.prod(graph.tensor_shapes[t], dtype=int)).reshape(graph.tensor_shapes[t])
            known[t] = ((total + pattern * salt) % 8191).astype(graph.tensor_dtypes[t])
    return known


class Program:
    """A segment, evaluated."""

    def __init__(self, book, segment, weight_bytes=0, workspace_bytes=0):
        graph, op_tensor = book.grouping.graph, book.grouping.op_tensor
        self.bytes, self.workspace, self.loaded = weight_bytes, workspace_bytes, weakref.WeakSet()
        self.graph, self.ops = graph, book.ops(segment)
        at = {graph.names[v]: int(t) for t, v in enumerate(graph.tensor_op.tolist())}
        model_inputs = {spec.name: at[spec.op] for spec in book.model.inputs}
        into = {int(v): int(t) for (_, v), t in zip(graph.edges, graph.edge_tensor, strict=True)}
        model_outputs = {spec.name: into[graph.index[spec.op]] for spec in book.model.outputs}
        self.reads = [int(op_tensor[t]) for t in segment.inputs] + [model_inputs[n] for n in book.inputs_of(segment)]
        self.writes = [int(op_tensor[t]) for t in segment.outputs] + [model_outputs[n] for n in book.outputs_of(segment)]

    def workspace_bytes(self, enough):
        return self.workspace

    def weight_bytes(self, place):
        return self.bytes

    def load(self, place):
        loaded = Loaded(self)
        self.loaded.add(loaded)
        return loaded


class Loaded:
    """A program on a device."""

    def __init__(self, program):
        self.program = program

    def launch(self, inputs, outputs):
        program = self.program
        known = evaluate(program.graph, program.ops, zip(program.reads, inputs, strict=True))
        for t, output in zip(program.writes, outputs, strict=True):
            output[...] = known[t]


def random_graph(seed, ops, devices, *, closed=False):
    """A random problem as a model: every source is an input or a constant, every sink goes to an output."""
    rng = np.random.default_rng([seed, 1])
    problem = random_problem(ops, devices, seed)
    edges = problem.edges.tolist()
    reading = {v for _, v in edges}
    kinds = ["Op" if v in reading or rng.random() < 0.2 else "Parameter" for v in range(ops)]
    if closed:  # constants in place of inputs
        kinds = ["Op"] * ops
    tensor_op, tensors = [], {}
    for v in range(ops):
        tensors[v] = [len(tensor_op) + i for i in range(1 if kinds[v] == "Parameter" else rng.integers(1, 3))]
        tensor_op += [v] * len(tensors[v])
    edge_tensor = [int(rng.choice(tensors[u])) for u, _ in edges]
    ends = sorted(set(range(len(tensor_op))) - set(edge_tensor))
    ends += [t for t in set(edge_tensor) if rng.random() < 0.1]
    for t in ends:
        edges.append([tensor_op[t], len(kinds)])
        edge_tensor.append(t)
        kinds.append("Result")
    shapes = [tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist()) for _ in tensor_op]
    dtypes = rng.choice(["float32", "int64", "float64"], len(tensor_op)).tolist()
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
    ports = [t - tensors[v][0] for t, v in enumerate(tensor_op)]
    return OpGraph(
        tuple(f"op{v}" for v in range(len(kinds))),
        tuple(kinds),
        np.ones(len(kinds)),
        np.zeros(len(kinds)),
        np.array(tensor_op, np.int32),
        np.array(ports, np.int32),
        np.array(sizes, np.float64),
        tuple(shapes),
        tuple(dtypes),
        np.array(edges, np.int32),
        np.array(edge_tensor, np.int32),
    ).verify()


@dataclass(frozen=True)
class Case:
    """A plan of a random model, and how to run it."""

    runtime: Runtime
    plan: Plan
    peers: frozenset
    seed: int

    def work(self, **bytes_of):
        segments = self.plan.segments
        return PlanTasks.of(
            self.runtime.book, self.plan, [Program(self.runtime.book, s, **bytes_of) for s in segments if not s.passthrough]
        )

    def accelerator(self, **options):
        return FakeAccelerator(len(self.runtime.cluster), self.seed, peers=self.peers, **options)

    def inputs(self, number=0):
        rng = np.random.default_rng([self.seed, 2, number])
        return {name: rng.integers(-99, 99, s.shape).astype(s.dtype) for name, s in self.runtime.book.inputs.items()}

    def expected(self, inputs):
        graph, model = self.runtime.grouping.graph, self.runtime.model
        at = {graph.names[v]: t for t, v in enumerate(graph.tensor_op.tolist())}
        known = evaluate(graph, range(len(graph)), {at[spec.op]: inputs[spec.name] for spec in model.inputs})
        into = {int(v): int(t) for (_, v), t in zip(graph.edges, graph.edge_tensor, strict=True)}
        return {spec.name: known[into[graph.index[spec.op]]] for spec in model.outputs}


def random_case(seed, *, ops=None, devices=None, merge=None, closed=False, shared=False):
    rng = np.random.default_rng([seed, 3])
    ops, devices = ops or int(rng.integers(1, 16)), devices or int(rng.integers(1, 5))
    graph = random_graph(seed, ops, devices, closed=closed)
    grouping = Grouping.singletons(graph)
    links = {
        (f"fake:{i}", f"fake:{j}"): Link(float(rng.uniform(10, 1000)), float(rng.uniform(0, 0.1)))
        for i in range(devices)
        for j in range(devices)
        if i != j
    }
    hardware = [Address("fake:0" if shared else f"fake:{d}") for d in range(devices)]
    cluster = Cluster(tuple(Device(f"fake:{d}", "fake", hardware[d]) for d in range(devices)), links)
    groups = len(grouping.groups)
    costs = Costs(
        rng.uniform(0.1, 1.0, (groups, devices)) * rng.integers(0, 2, (groups, 1)),
        rng.uniform(0.0, 0.1, (groups, devices)),
        np.full(devices, 0.1),
        cluster,
    )
    merge = bool(rng.integers(2)) if merge is None else merge
    place = rng.integers(0, devices, groups)
    if closed:  # nothing moves but between devices, as in the simulation
        for u, v in graph.edges.tolist():
            if graph.kinds[v] == "Result":
                place[v] = place[u]
    plan = Segmenter(grouping, costs).plan(place, merge=merge)
    pairs = [(i, j) for i in range(devices) for j in range(devices) if i != j]
    peers = frozenset(pair for pair in pairs if closed or rng.random() < 0.6)
    runtime = Runtime(Model(graph), grouping, cluster, devices=[None] * devices, transports={})
    return Case(runtime, plan, peers, seed)


def run_case(case, *, in_flight=1, rounds=2, ahead=2, patience=1.0, skip_wait=None, **devices):
    """Run a case; return the accelerator and whether every output was right."""
    accelerator = case.accelerator(patience=patience, skip_wait=skip_wait, **devices)
    right = True
    with StreamExecutor(case.work(), accelerator, in_flight=in_flight, ahead=ahead) as executor:
        for number in range(rounds):
            for request in range(in_flight):
                executor.set_inputs(case.inputs(number + request), request=request)
            executor.times(in_flight)
            for request in range(in_flight):
                want = case.expected(case.inputs(number + request))
                got = executor.outputs(request=request)
                right &= got.keys() == want.keys() and all(np.array_equal(got[name], want[name]) for name in want)
    return accelerator, right
