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
from placeit.runtime.feed import Ran
from placeit.runtime.native import libc, loop
from placeit.runtime.slots import Slot
from placeit.simulator.machine import Machine
from placeit.simulator.queues import DONE, RUNNING
from placeit.simulator.scheduler import Scheduler

if TYPE_CHECKING:
    from placeit.runtime.runtime import Runtime

__all__ = ["NativePlan", "NativeRan", "compile_loop", "native_plan"]


@dataclass(frozen=True)
class NativeRan:
    """What compiled lanes did in one run.

    Attributes:
        begin: seconds, by ``time.perf_counter``.
        end: likewise.
        segments: for each slot, (segment, start, finish) of all that computed something and ended, by start.
        transfers: for each slot, (edge position, start, finish) of all that took time and ended, by start.
        failed: the slot and the segment that failed first, and what its device says; None if none did.
        refused: why the thread of a lane did not come, as it is closed or has died; None if every one did.
    """

    begin: float
    end: float
    segments: list[list[Ran]]
    transfers: list[list[Ran]]
    failed: tuple[int, int, str] | None
    refused: BaseException | None


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
            np.zeros((lanes + 1, lanes + 1), np.bool_),
            np.zeros(len(entries), np.bool_),
            np.zeros(len(entries), np.bool_),
            np.zeros(len(entry) + len(entries) + len(machine.state.out), np.int64),
            np.zeros(loop.CONTROLS, np.int64),
            np.zeros(2),
            libc.timespecs(lanes + 1),
            sync,
            addresses,
        )
        self._lock = threading.Lock()
        self._inside = 0
        self._failure = ""
        self._refused: BaseException | None = None
        self.stop()
        # compiles the loop, or loads it, before anything is timed
        loop.run_lane(self.machine, self.lanes, 0)
        loop.admit(self.machine, self.lanes, 0)
        loop.admit_no_more(self.lanes)

    def prepare(self, slots: Sequence[int], waiting: int, bell: int | None = None) -> None:
        """Make ready for a run; from here on it can be stopped.

        Args:
            slots: the requests that begin at once.
            waiting: how many follow them, each as soon as a slot is free.
            bell: of a run that requests are added to, what to ring when one has ended: the number of an ``eventfd``.
        """
        control = self.lanes.control
        control[:] = 0
        control[loop.LEFT], control[loop.WAITING], control[loop.FAILED] = len(slots) + (bell is not None), waiting, -1
        control[loop.BELL] = loop.NOTHING if bell is None else bell
        self.lanes.first[:] = self.lanes.done[:] = False
        self.lanes.first[list(slots)] = True
        self.lanes.box[:], self.lanes.wake[:] = loop.NOTHING, False

    def start(self, ended: Callable[[NativeRan], object]) -> None:
        """Run what was prepared, on the thread of the first lane; return when that lane has nothing left to do.

        Args:
            ended: told what was done, once every lane is out of the loop, on the thread of the last one.
        """
        self._inside, self._failure, self._refused = len(self.workers), "", None
        for k, worker in enumerate(self.workers[1:], 1):
            try:
                worker.submit(lambda k=k: self._work(k, ended))  # type: ignore[misc]
            except BaseException as refusal:  # noqa: BLE001 (the other lanes leave when they see that)
                self._refused = refusal.with_traceback(None)  # which refers to this plan
                self.stop()
                self._leave(ended)
        self._work(0, ended)

    def admit(self, slot: int) -> None:
        """Begin a request in a free slot of a run with a bell; it may not happen if the run has been stopped."""
        loop.admit(self.machine, self.lanes, slot)

    def admit_no_more(self) -> None:
        """Have a run with a bell be over when nothing is in flight."""
        loop.admit_no_more(self.lanes)

    def ended(self) -> list[int]:
        """Requests that have ended well since this was last asked."""
        done: list[int] = np.flatnonzero(self.lanes.done).tolist()
        self.lanes.done[done] = False
        return done

    def wanted(self) -> bool:
        """Whether others wait for the threads, all of which have come."""
        return bool(self.lanes.control[loop.BEGUN]) and any(worker.waiting for worker in self.workers)

    def stop(self) -> None:
        """Have nothing more started; what runs goes on to its end. From any thread, at any time."""
        self.lanes.control[loop.STOPPED] = 1

    @property
    def stopped(self) -> bool:
        """Whether nothing more is started, as something has failed or :meth:`stop` was called."""
        return bool(self.lanes.control[loop.STOPPED])

    def running(self) -> list[tuple[int, int]]:
        """Slot and node of what is on a lane now; while a run is under way this is a snapshot."""
        phase = self.machine.state.node["phase"]
        return [divmod(n, self.nodes) for n in np.flatnonzero(phase == RUNNING).tolist()]

    def _work(self, k: int, ended: Callable[[NativeRan], object]) -> None:
        wake_on_time()
        loop.run_lane(self.machine, self.lanes, k)
        if self.lanes.control[loop.FAILED_LANE] == k and self.lanes.control[loop.FAILED] >= 0:
            self._failure = self._explain[k]()
        self._leave(ended)

    def _leave(self, ended: Callable[[NativeRan], object]) -> None:
        with self._lock:
            self._inside -= 1
            last = self._inside == 0
        if last:
            ended(self._ran())

    def _ran(self) -> NativeRan:
        lanes = self.lanes
        found = [self.ran(slot) for slot in range(len(self.machine.state.request))]
        failed = int(lanes.control[loop.FAILED])
        what = None if failed < 0 else (*divmod(failed, self.nodes), self._failure)
        segments, transfers = [of_slot[0] for of_slot in found], [of_slot[1] for of_slot in found]
        return NativeRan(float(lanes.time[0]), float(lanes.time[1]), segments, transfers, what, self._refused)

    def ran(self, slot: int) -> tuple[list[Ran], list[Ran]]:
        """What computed and what was moved in a slot since the run, or the request there, began; see :class:`NativeRan`."""
        node, ops, lanes, base = self.machine.state.node, len(self.machine.place), self.lanes, slot * self.nodes
        own = node[base : base + self.nodes]
        ended = (lanes.entry[base : base + self.nodes] != 0) & (own["phase"] == DONE) & (own["start"] >= lanes.time[0])
        done = np.flatnonzero(ended & (lanes.control[loop.BEGUN] > 0))
        done = done[np.argsort(own["start"][done], kind="stable")]
        found = list(zip(done.tolist(), own["start"][done].tolist(), own["finish"][done].tolist(), strict=True))
        moved = [(n - ops, start, finish) for n, start, finish in found if n >= ops]
        return [what for what in found if what[0] < ops], moved


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
