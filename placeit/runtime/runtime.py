"""The devices, links and compiled segments that executors share."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias, cast
from weakref import WeakSet

from placeit.backends.base import Format, Model
from placeit.core import clock
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError, GraphError
from placeit.core.memory import Use
from placeit.devices.host import memory_bytes
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Plan, Segment
from placeit.runtime.accelerators.accelerator import StreamProgram, Streams
from placeit.runtime.background import in_background
from placeit.runtime.compiling import Compiling
from placeit.runtime.devices.base import Buffer, BufferSpec, Program, RuntimeDevice, SegmentSource, Transport
from placeit.runtime.devices.emulated import EmulatedLink, SlowedDevice, SlowedLink
from placeit.runtime.devices.hand_over import HandOver
from placeit.runtime.devices.kinds import DeviceKind, device_kind
from placeit.runtime.devices.worker import Gate, apart
from placeit.runtime.executor import Executor
from placeit.runtime.native.turns import Turns
from placeit.runtime.plan_executor import PlanExecutor, check_process
from placeit.runtime.programs import Programs
from placeit.runtime.refused import naming_ops
from placeit.runtime.reopening import lost_of, reopened

__all__ = ["Runtime"]

_KEPT_MODELS, _KEPT_BYTES, _KEPT_SHARE = 3, 1e9, 0.5
"""Programs that no executor uses are kept while the process grows by no more than so many times the model's weights and so many
bytes more, or this share of the memory that it may take, if that is less."""
_KEPT_PROGRAMS, _KEPT_THREADS = 512, 256
_GIVES_UP_S = 5.0
_ALMOST = 0.95  # of a batch of segments, before they are compiled

_Key: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Of a program: what the device computes, the cores that it is for, if that matters, and the groups."""


class Runtime:
    """One model on the real devices of one cluster. Use it as a context manager, or call :meth:`close`.

    Segments are compiled once for all placements, so that measuring a new placement mostly re-uses what is there.

    Args:
        model: the model.
        grouping: its ops in groups.
        cluster: real or emulated devices; links of origin ``measured`` are the hardware's own and are not throttled. Links are
            opened by the kinds of their ends (:class:`placeit.runtime.devices.kinds.DeviceKind`).
        precision: inference precision of every device.
        devices: what to run on in place of the cluster's real devices, one for each of them, such as null devices.
        transports: links to go with them, by (source, destination); None for the cluster's emulated ones, and for hand-overs
            through the host's memory where two devices have different memories.
        streams: what drives all of them through streams instead.
        wait: what else to do to have a run end, such as letting time pass on a virtual clock.
        expected: names of devices that need not be there yet: they count as lost until they are (:meth:`reopen`).
        compiling: counts programs, and has what is told what is being compiled; None for one of its own.

    Raises:
        DeviceError: a device exists in simulation only, or is of a kind that this version cannot run.
        GraphError: the grouping tears apart what the model says must stay together.
    """

    def __init__(
        self,
        model: Model,
        grouping: Grouping,
        cluster: Cluster,
        *,
        precision: str = "f32",
        devices: Sequence[RuntimeDevice] | None = None,
        transports: Mapping[tuple[int, int], Transport] | None = None,
        streams: Streams | None = None,
        wait: Callable[[Gate], object] | None = None,
        expected: Collection[str] = (),
        compiling: Compiling | None = None,
    ) -> None:
        self.model, self.grouping, self.cluster = model, grouping, cluster
        self.compiling = Compiling() if compiling is None else compiling
        _check_together(model, grouping)
        self.members: list[list[int]] = [[] for _ in range(len(grouping.groups))]
        for v, group in enumerate(grouping.group_of.tolist()):
            self.members[group].append(v)
        self.channels_last = model.channels_last
        self.precision = precision
        self._input_of = {spec.op: spec.name for spec in model.inputs}
        self._output_of = {spec.op: spec.name for spec in model.outputs}
        self.inputs = {spec.name: BufferSpec(spec.shape, spec.dtype) for spec in model.inputs}
        self.model_outputs = {spec.name: BufferSpec(spec.shape, spec.dtype) for spec in model.outputs}
        room = _KEPT_MODELS * float(grouping.groups.param_bytes.sum()) + _KEPT_BYTES
        self._programs: Programs[_Key, Program | StreamProgram] = Programs(
            Use(min(room, _KEPT_SHARE * memory_bytes()), _KEPT_THREADS), most=(_KEPT_PROGRAMS, room), weights=self._weights
        )
        self._first_of: dict[str, tuple[int, ...]] = {}  # by what they compute, the groups of the first segment that does
        self._equal: dict[tuple[int, ...], tuple[int, ...] | None] = {}  # of segments that were looked at
        self.wait = wait
        self.native_turns = Turns()
        self._process = os.getpid()
        self._executors: WeakSet[PlanExecutor] = WeakSet()
        self._opening, self._reopening, self._closed = threading.Lock(), threading.Lock(), False
        self.streams = streams
        if devices is None and streams is None:
            _check_real(cluster)
            self.streams = _open_streams(cluster, precision)
        if self.streams is not None:
            self.devices, self.transports = tuple(devices or ()), dict(transports or {})
        elif devices is None:
            self.devices, self.transports = _open(cluster, precision, expected)
        else:
            self.devices = tuple(devices)
            self.transports = _open_links(cluster, self.devices, ()) if transports is None else dict(transports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End runs, stop every thread, even if one raises, and release the memory of programs that no executor uses."""
        with self._opening:
            executors, self._closed = list(self._executors), True
        why = self._why_closed()
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_reopening)
            stack.callback(self._programs.clear)
            if self.streams is not None:
                stack.callback(self.streams.accelerator.close)
            for transport in self.transports.values():
                stack.callback(transport.close)
            for device in self.devices:
                stack.callback(device.close)
            for executor in executors:
                stack.callback(executor.give_up, why)

    def check_open(self) -> None:
        """Raise ExecutionError if it is closed, or is being closed."""
        if self._closed:
            raise ExecutionError(self._why_closed())

    def _why_closed(self) -> str:
        return f"{', '.join(self.cluster.names)} is closed, and nothing more can run there: open a new session or runtime."

    def lost(self) -> dict[frozenset[str], DeviceError]:
        """Devices that are lost, and pairs of them whose link is; by their names, why."""
        return lost_of(self.cluster.names, self.devices)

    def reopen(self) -> list[frozenset[str]]:
        """Open lost devices and links anew that are there again; return their names, as :meth:`lost` has them.

        Executors that exist have lost them for good. It takes as long as a node takes to answer, a minute at most for each.
        """
        with self._reopening:
            before = self.devices
            devices, transports, back = reopened(self.cluster.names, before, self.transports)
            with self._opening:
                wanted = not self._closed
                if wanted:
                    self.transports, self.devices = dict(transports), devices
            for old, new in zip(before, devices, strict=True):
                if new is not old:
                    (old if wanted else new).close()
        return back if wanted else []

    def _end_reopening(self) -> None:
        """Wait for what is being opened anew, which is given up as its devices are closed."""
        if self._reopening.acquire(timeout=_GIVES_UP_S):
            self._reopening.release()

    def compiling_takes(self, plans: Iterable[Plan]) -> float:
        """Seconds that compiling and loading what is missing of plans may take, by what that has taken so far."""
        missing = {key: s for plan in plans for s in plan.programs if (key := self._key(s)) not in self._programs}
        return sum(map(self._takes, missing.values()))

    def compiling_takes_anew(self, device: Device) -> float:
        """Seconds that compiling the whole model for a device, be it one of the cluster or another one, may take."""
        return self.compiling.takes(Compiling.kind(device), len(self.grouping.graph))

    def _takes(self, segment: Segment) -> float:
        """Seconds that compiling a segment may take, or loading it where the device finds it on disk."""
        keeps = None if self.streams is not None else getattr(self.devices[segment.device], "keeps", None)
        on_disk = keeps is not None and keeps(self.source(segment))
        return self.compiling.takes(self._kind(segment), len(self.ops(segment)), on_disk=on_disk)

    def _kind(self, segment: Segment) -> str:
        return Compiling.kind(self.cluster.devices[segment.device])

    def executor(self, plan: Plan, *, in_flight: int = 1) -> PlanExecutor:
        """Make a plan ready to run, with the kind of executor for these devices.

        Args:
            plan: what to run.
            in_flight: how many requests may be in flight at once.

        Raises:
            DeviceError: a segment cannot be compiled for its device, or there is no room for its weights or buffers.
            ExecutionError: this process was forked from the one that opened the devices.
            UsageError: no request at all.
        """
        check_process(self._process)
        executor = self._executor(plan, in_flight)
        with self._opening:
            self._executors.add(executor)
        return executor

    def best_in_flight(self, plan: Plan) -> int | None:
        """Return how many requests in flight the runtime finds best for a plan in throughput mode; None for any other plan.

        Raises:
            DeviceError: it cannot be compiled.
        """
        if not any(device.kind == "throughput" for device in self.cluster.devices):
            return None
        from placeit.runtime.several import device_of_several

        device = device_of_several(self, plan)
        return None if device is None else device.streams(cast("Program", self.compile(plan.programs)[0]))

    def _executor(self, plan: Plan, in_flight: int) -> PlanExecutor:
        if self.streams is None:
            if any(device.kind == "throughput" for device in self.cluster.devices):
                from placeit.runtime.several import SeveralExecutor, device_of_several

                if device_of_several(self, plan) is not None:
                    return SeveralExecutor(self, plan, in_flight=in_flight)
            return Executor(self, plan, in_flight=in_flight)
        from placeit.runtime.accelerators.executor import StreamExecutor
        from placeit.runtime.accelerators.work import PlanTasks

        return StreamExecutor(PlanTasks.of(self, plan), self.streams.accelerator, in_flight=in_flight)

    def compile(self, segments: Sequence[Segment]) -> list[Program | StreamProgram]:
        """Compile segments for their devices, or reuse programs that were compiled before. Raises DeviceError."""
        batch = _Batch()
        try:
            if in_background():
                return self._compile_all(segments, batch)
            return apart(functools.partial(self._compile_all, segments, batch), functools.partial(self._tell, batch))
        except BaseException:
            batch.given_up.open()
            raise

    def _tell(self, batch: _Batch) -> None:
        if self.compiling.progress is not None and batch.total:
            self.compiling.progress(*batch.said(clock.now()))

    def _compile_all(self, segments: Sequence[Segment], batch: _Batch) -> list[Program | StreamProgram]:
        for segment in segments:
            self._find_equal(segment)
        keys = [self._key(segment) for segment in segments]

        def make(places: Sequence[int]) -> list[Program | StreamProgram]:
            missing = [segments[place] for place in places]
            batch.devices = ", ".join(dict.fromkeys(self.cluster.names[segment.device] for segment in missing))
            batch.expected = sum(map(self._takes, missing))
            batch.begin, batch.total = clock.now(), len(missing)
            compile_one = functools.partial(self._compile, batch)
            if in_background():
                made = [*map(compile_one, missing)]
            else:
                with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "placeit compile") as pool:
                    made = list(pool.map(compile_one, missing))
            self._book(missing, made, clock.now() - batch.begin)
            return [program for program, _ in made]

        for key, segment in dict(zip(keys, segments, strict=True)).items():
            if key in self._programs:
                self.compiling.reuse(self._kind(segment))
        return self._programs.get(keys, make)

    def _book(self, segments: Sequence[Segment], made: Sequence[tuple[Program | StreamProgram, float]], seconds: float) -> None:
        """Count programs that were made within some seconds, each with its own, several at a time."""
        at_once = sum(taken for _, taken in made) / seconds if seconds > 0 else 1.0
        for segment, (program, taken) in zip(segments, made, strict=True):
            from_disk = getattr(program, "from_disk", False)
            share = taken / at_once if at_once > 0 else 0.0
            self.compiling.book(self._kind(segment), share, len(self.ops(segment)), from_disk=from_disk)

    def _compile(self, batch: _Batch, segment: Segment) -> tuple[Program | StreamProgram, float]:
        if batch.given_up.is_open:
            raise ExecutionError("Nobody waits for this segment to be compiled any more.")
        compile_one = self.devices[segment.device].compile if self.streams is None else self.streams.compile
        begin, whole = clock.now(), len(segment.groups) == len(self.grouping.groups)
        with self.on(segment.device), naming_ops(self.op_names(segment), whole=whole):
            program = compile_one(self.source(segment))
        batch.done += 1
        return program, clock.now() - begin

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device ready for a plan; a DeviceError says that it is this one which cannot be."""
        try:
            yield
        except DeviceError as error:
            error.device = self.cluster.names[device]
            raise

    def source(self, segment: Segment) -> SegmentSource:
        """A segment in the form that devices compile."""
        return _Source(self, segment)

    def _key(self, segment: Segment) -> _Key:
        """Return the key of the program of a segment.

        Where a program runs one request at a time, equal devices that may run the same segment at once have one each. Single
        groups, of which profiling compiles many, are shared: no two devices profile the same one at once. But they may profile
        groups that are equal.
        """
        if self.streams is not None:
            return "", (), segment.groups
        device, cores = self.devices[segment.device], self.cluster.devices[segment.device].cores
        single = len(segment.groups) == 1 < len(self.grouping.groups)
        first = self._equal.get(segment.groups)
        own = getattr(device, "one_at_a_time", False) and not (single and first is None)
        groups = tuple(range(len(segment.groups))) if self.model.uniform else first or segment.groups
        return device.program_key, cores if own else (), groups

    def _find_equal(self, segment: Segment) -> None:
        """Find out whether a segment computes what another one does that was looked at before: one program then serves both."""
        if segment.groups in self._equal:
            return
        what = None
        with contextlib.suppress(DeviceError):  # it cannot be cut out, as compiling it will say
            what = self.model.function(*self.parts(segment))
        self._equal[segment.groups] = None if what is None else self._first_of.setdefault(what, segment.groups)

    def parts(self, segment: Segment) -> tuple[list[int], list[int], list[int]]:
        """Ops of a segment, tensors that enter and tensors that leave, by their numbers in the task graph."""
        op_tensor = self.grouping.op_tensor
        enter, leave = ([int(op_tensor[t]) for t in tensors] for tensors in (segment.inputs, segment.outputs))
        return self.ops(segment), enter, leave

    def _weights(self, key: _Key) -> float:
        return float(self.grouping.groups.param_bytes[list(key[2])].sum())

    def ops(self, segment: Segment) -> list[int]:
        """Op numbers of a segment, ascending."""
        return sorted(v for group in segment.groups for v in self.members[group])

    def op_names(self, segment: Segment) -> list[str]:
        """Op names of a segment, in topological order."""
        return [self.grouping.graph.names[v] for v in self.ops(segment)]

    def inputs_of(self, segment: Segment) -> list[str]:
        """Model inputs in a segment, in op order."""
        return [self._input_of[name] for name in self.op_names(segment) if name in self._input_of]

    def outputs_of(self, segment: Segment) -> list[str]:
        """Model outputs in a segment, in op order."""
        return [self._output_of[name] for name in self.op_names(segment) if name in self._output_of]

    def tensor_name(self, tensor: int) -> str:
        """Name of a tensor of the group graph: the op that produces it."""
        graph = self.grouping.graph
        return graph.names[int(graph.tensor_op[self.grouping.op_tensor[tensor]])]

    def spec(self, tensor: int) -> BufferSpec:
        """Shape, type and memory order of a tensor of the group graph when it crosses a segment's border."""
        graph, t = self.grouping.graph, int(self.grouping.op_tensor[tensor])
        return BufferSpec(graph.tensor_shapes[t], graph.tensor_dtypes[t], t in self.channels_last)

    def hand_through(self, segment: Segment, entering: Mapping[int, Buffer], inputs: Mapping[str, Buffer]) -> list[Buffer]:
        """Buffers of the outputs of a segment that runs nothing: tensors for other segments, then outputs of the model."""
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


def _check_real(cluster: Cluster) -> None:
    for device in cluster.devices:
        if device.described:
            raise DeviceError(f"{device.name} is a described device: it exists in simulation only and cannot run anything.")


def _open_streams(cluster: Cluster, precision: str) -> Streams | None:
    """Drive the whole cluster through streams, launched ahead, if a kind of device can.

    What is slowed down on purpose has to be paced by the host, as do clusters of several kinds.
    """
    if any(device.emulated for device in cluster.devices) or any(link.origin == "emulated" for link in cluster.links.values()):
        return None
    for device in cluster.devices:
        streams = device_kind(device).streams(cluster.devices, precision)
        if streams is not None:
            return streams
    return None


def _open(
    cluster: Cluster, precision: str, expected: Collection[str]
) -> tuple[tuple[RuntimeDevice, ...], dict[tuple[int, int], Transport]]:
    """Open each device, and the links between them, by their kinds."""
    kinds = [device_kind(device) for device in cluster.devices]
    real: list[RuntimeDevice] = []
    try:
        for kind, device in zip(kinds, cluster.devices, strict=True):
            make = kind.expected if device.name in expected else kind.open
            real.append(make(device, precision))
        links = _open_links(cluster, real, kinds)
    except BaseException:
        for opened in real:
            opened.close()
        raise
    # the nodes slow their own devices down
    slowed = (device.emulated and not device.where.node for device in cluster.devices)
    pairs = zip(real, cluster.devices, slowed, strict=True)
    return tuple(SlowedDevice(opened, device.slowdown) if slow else opened for opened, device, slow in pairs), links


def _open_links(
    cluster: Cluster, devices: Sequence[RuntimeDevice], kinds: Sequence[DeviceKind]
) -> dict[tuple[int, int], Transport]:
    """Open a link wherever a kind has one, memories differ, or the cluster has an emulated one."""
    links: dict[tuple[int, int], Transport] = {}
    try:
        for src, dst in itertools.permutations(range(len(cluster)), 2):
            ends = cluster.names[src], cluster.names[dst]
            name = f"placeit {' -> '.join(ends)}"
            asked = (kinds[d].link(devices[src], devices[dst]) for d in (src, dst) if kinds)
            made = next((link for link in asked if link is not None), None)
            if made is None and devices[src].space != devices[dst].space:
                made = HandOver(name)
            if made is not None:
                links[src, dst] = made
            link = cluster.links.get(ends)
            if link is not None and link.origin == "emulated":
                if any(
                    device.address is not None and device.address.node
                    for device in (cluster.devices[src], cluster.devices[dst])
                ):
                    raise DeviceError(
                        f"The link {' -> '.join(ends)} leads to another node, and cannot be emulated: leave it out."
                    )
                emulated = EmulatedLink(name, link.bandwidth, link.latency)
                links[src, dst] = emulated if made is None else SlowedLink(made, emulated)
    except BaseException:
        for opened in links.values():
            opened.close()
        raise
    return links


class _Batch:
    """Segments that are compiled while somebody waits.

    Attributes:
        given_up: opened when nobody waits any more.
        devices: names of those that they are for.
        total, done: how many there are, and how many of them are compiled.
        begin: when the first was begun, by :func:`placeit.core.clock.now`.
        expected: seconds that all of them may take.
    """

    def __init__(self) -> None:
        self.given_up, self.devices = Gate(), ""
        self.total = self.done = 0
        self.begin = self.expected = 0.0

    def said(self, now: float) -> tuple[str, float]:
        """Return what is being done, and which share of it is done."""
        what = f"compiling {min(self.done + 1, self.total)} of {self.total} segments for {self.devices}"
        by_time = (now - self.begin) / self.expected if self.expected > 0 else 0.0
        return what, max(self.done / self.total, min(by_time, _ALMOST))


_FRAMEWORKS: Mapping[Format, str] = {"openvino": "OpenVINO", "onnx": "ONNX", "torch": "PyTorch"}


@dataclass(frozen=True, eq=False)
class _Source:
    """A segment of a model, for a device to compile."""

    runtime: Runtime
    segment: Segment

    @functools.cached_property
    def inputs(self) -> tuple[BufferSpec, ...]:
        runtime = self.runtime
        ends = (runtime.inputs[name] for name in runtime.inputs_of(self.segment))
        return (*map(runtime.spec, self.segment.inputs), *ends)

    @functools.cached_property
    def outputs(self) -> tuple[BufferSpec, ...]:
        runtime = self.runtime
        ends = (runtime.model_outputs[name] for name in runtime.outputs_of(self.segment))
        return (*map(runtime.spec, self.segment.outputs), *ends)

    @property
    def identity(self) -> str:
        return f"{self.runtime.model.identity} {self.runtime.parts(self.segment)}"

    def in_format(self, form: Format) -> Any:
        model = self.runtime.model
        if form not in model.formats:
            device, framework = self.runtime.cluster.names[self.segment.device], _FRAMEWORKS[form]
            raise DeviceError(
                f"{device} runs {framework} programs, and {model.path} is not read with {framework}: convert it with `placeit "
                "export`, or choose other devices."
            )
        return model.segment(form, *self.runtime.parts(self.segment))
