"""A plan that compiled lanes run: which it can be, what they need, and what they did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.planning.segments import Plan
from placeit.runtime.devices.emulated import wake_on_time
from placeit.runtime.devices.worker import Worker
from placeit.runtime.native import libc, loop
from placeit.runtime.slots import Slot
from placeit.simulator.machine import Machine
from placeit.simulator.queues import DONE, RUNNING
from placeit.simulator.scheduler import Scheduler

if TYPE_CHECKING:
    from placeit.runtime.runtime import Runtime

__all__ = ["NativePlan", "Ran", "compile_loop", "native_plan"]


@dataclass(frozen=True)
class Ran:
    """What compiled lanes did in one run.

    Attributes:
        begin: seconds, by ``time.perf_counter``.
        end: likewise.
        segments: for each slot, (segment, start, finish) of all that computed something and ended, by start.
        transfers: for each slot, (edge position, start, finish) of all that took time and ended, by start.
        failed: the first segment that failed, and what its device says; None if none did.
    """

    begin: float
    end: float
    segments: list[list[tuple[int, float, float]]]
    transfers: list[list[tuple[int, float, float]]]
    failed: tuple[int, str] | None


class NativePlan:
    """The lanes of an executor whose segments all have a native entry.

    Args:
        machine: the rules of the plan.
        entries: C function and argument of each segment, for each slot; None for a segment that runs nothing.
        links: lane, and seconds, of each edge position whose transfer an emulated link makes.
        slowdown: of each lane, devices first; 0 for a link.
        device_lane: lane of each device that is used.
        workers: the thread of each lane.
        explain: says what the device of a lane reports, after an entry has failed there, on its thread.
        addresses: of the C library's functions (:func:`placeit.runtime.native.libc.addresses`).
    """

    def __init__(
        self,
        machine: Machine,
        entries: Sequence[Sequence[tuple[int, int] | None]],
        links: dict[int, tuple[int, float]],
        slowdown: Sequence[float],
        device_lane: dict[int, int],
        workers: Sequence[Worker],
        explain: Sequence[Callable[[], str]],
        addresses: NDArray[np.int64],
    ) -> None:
        self.machine, self.workers = machine, tuple(workers)
        self._explain = tuple(explain)
        ops, lanes = len(machine.place), len(slowdown)
        self.nodes = ops + len(machine.edge)
        entry = np.zeros(len(entries) * self.nodes, np.int64)
        argument, lane = np.zeros_like(entry), np.full(len(entry), -1, np.int32)
        seconds = np.zeros(self.nodes)
        for slot, of_slot in enumerate(entries):
            base = slot * self.nodes
            for s, native in enumerate(of_slot):
                if native is not None:
                    entry[base + s], argument[base + s] = native
                    lane[base + s] = device_lane[int(machine.place[s])]
            for p, (k, takes) in links.items():
                entry[base + ops + p], lane[base + ops + p], seconds[ops + p] = 1, k, takes
        self._memory, sync = libc.initialise(lanes)
        self.lanes = loop.Lanes(
            entry,
            argument,
            lane,
            seconds,
            np.array(slowdown, np.float64),
            np.full(lanes, loop.NOTHING, np.int64),
            np.zeros(lanes),
            np.zeros(lanes),
            np.zeros((lanes, lanes), np.bool_),
            np.zeros(len(entry) + len(entries) + len(machine.state.out), np.int64),
            np.zeros(loop.CONTROLS, np.int64),
            np.zeros(2),
            libc.timespecs(lanes),
            sync,
            addresses,
        )
        self._lock = threading.Lock()
        self._inside = 0
        self._failure = ""
        self.stop()
        loop.run_lane(self.machine, self.lanes, 0)  # compiles the loop, or loads it, before anything is timed

    def prepare(self, requests: int, waiting: int) -> None:
        """Make ready for a run; from here on it can be stopped.

        Args:
            requests: how many begin at once, each in its slot.
            waiting: how many follow them, each as soon as a slot is free.
        """
        control = self.lanes.control
        control[:] = 0
        control[loop.LEFT], control[loop.WAITING], control[loop.FAILED] = requests, waiting, -1

    def start(self, ended: Callable[[Ran], object]) -> None:
        """Run what was prepared, on the thread of the first lane; return when that lane has nothing left to do.

        Args:
            ended: told what was done, once every lane is out of the loop, on the thread of the last one.
        """
        self.lanes.box[:], self.lanes.wake[:] = loop.NOTHING, False
        self._inside, self._failure = len(self.workers), ""
        for k, worker in enumerate(self.workers[1:], 1):
            try:
                worker.submit(lambda k=k: self._work(k, ended))  # type: ignore[misc]
            except BaseException:  # noqa: BLE001 (its thread is gone; the others leave when they see that)
                self.stop()
                self._leave(ended)
        self._work(0, ended)

    def stop(self) -> None:
        """Have nothing more started; what runs goes on to its end. From any thread, at any time."""
        self.lanes.control[loop.STOPPED] = 1

    def running(self) -> list[tuple[int, int]]:
        """Slot and node of what is on a lane now; while a run is under way this is a snapshot."""
        phase = self.machine.state.node["phase"]
        return [divmod(n, self.nodes) for n in np.flatnonzero(phase == RUNNING).tolist()]

    def _work(self, k: int, ended: Callable[[Ran], object]) -> None:
        wake_on_time()
        loop.run_lane(self.machine, self.lanes, k)
        if self.lanes.control[loop.FAILED_LANE] == k and self.lanes.control[loop.FAILED] >= 0:
            self._failure = self._explain[k]()
        self._leave(ended)

    def _leave(self, ended: Callable[[Ran], object]) -> None:
        with self._lock:
            self._inside -= 1
            last = self._inside == 0
        if last:
            ended(self._ran())

    def _ran(self) -> Ran:
        node, ops, lanes = self.machine.state.node, len(self.machine.place), self.lanes
        segments: list[list[tuple[int, float, float]]] = []
        transfers: list[list[tuple[int, float, float]]] = []
        ended = (
            (lanes.entry != 0) & (node["phase"] == DONE) & (node["start"] >= lanes.time[0]) & (lanes.control[loop.BEGUN] > 0)
        )
        for begin in range(0, len(node), self.nodes):
            own = node[begin : begin + self.nodes]
            done = np.flatnonzero(ended[begin : begin + self.nodes])
            done = done[np.argsort(own["start"][done], kind="stable")]
            found = list(zip(done.tolist(), own["start"][done].tolist(), own["finish"][done].tolist(), strict=True))
            segments.append([what for what in found if what[0] < ops])
            transfers.append([(n - ops, start, finish) for n, start, finish in found if n >= ops])
        failed = int(lanes.control[loop.FAILED])
        what = None if failed < 0 else (failed % self.nodes, self._failure)
        return Ran(float(lanes.time[0]), float(lanes.time[1]), segments, transfers, what)


def native_plan(runtime: Runtime, plan: Plan, slots: Sequence[Slot], machine: Machine) -> NativePlan | None:
    """Prepare the lanes of a plan; None if something in it has no native entry, or lanes have no thread."""
    addresses = libc.addresses()
    used = dict.fromkeys(s.device for s in plan.programs)
    if addresses is None or runtime.wait is not None or not used:
        return None
    drivers: list[Any] = [runtime.devices[d] for d in used]
    entries = [[None if start is None else getattr(start[0], "native", None) for start in slot.starts] for slot in slots]
    for of_slot, slot in zip(entries, slots, strict=True):
        if any(native is None and start is not None for native, start in zip(of_slot, slot.starts, strict=True)):
            return None
    device_lane = {d: k for k, d in enumerate(used)}
    slowdown, link_lane = [float(getattr(driver, "slowdown", 1.0)) for driver in drivers], dict[tuple[int, int], int]()
    links: dict[int, tuple[int, float]] = {}
    edge, place = machine.edge, machine.place
    for p in range(len(edge)):
        src, dst = int(place[edge["tail"][p]]), int(place[edge["head"][p]])
        copy = slots[0].copies.get((int(edge["tensor"][p]), dst))
        if copy is None or src == dst:
            continue
        transport: Any = runtime.transports[src, dst]
        if not hasattr(transport, "seconds"):
            return None
        if (src, dst) not in link_lane:
            link_lane[src, dst] = len(drivers)
            drivers.append(transport)
            slowdown.append(0.0)
        links[p] = link_lane[src, dst], transport.seconds(copy[2])
    workers = [getattr(driver, "worker", None) for driver in drivers]
    if any(worker is None for worker in workers):
        return None
    explain = [getattr(driver, "explain", lambda: "") for driver in drivers]
    known = [worker for worker in workers if worker is not None]
    return NativePlan(machine, entries, links, slowdown, device_lane, known, explain, addresses)


def compile_loop() -> None:
    """Compile the loop of lanes, or load it from where Numba keeps it, before a time that is limited begins."""
    addresses = libc.addresses()
    if addresses is not None:
        problem = Problem.from_arrays([[1.0]], [], [], [[1.0]], [[0.0]])
        NativePlan(Scheduler(problem, [0]).machine, [[None]], {}, [1.0], {0: 0}, [], [str], addresses)
