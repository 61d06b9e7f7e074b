"""Launch orders: decided by the scheduler as work ends, or by the simulated schedule in advance."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Protocol

from placeit.runtime.accelerators.accelerator import HOST, Replay
from placeit.runtime.accelerators.clocks import Clocks, Mark
from placeit.runtime.accelerators.launcher import Launcher
from placeit.simulator.scheduler import Instruction, RequestDone, Scheduler, Start

__all__ = ["Dynamic", "Graph", "LaunchOrder", "Static"]


class LaunchOrder(Protocol):
    """A launch order."""

    def begin(self, request: int) -> None:
        """Launch a request, or the part of it that can be launched."""
        ...

    def ended(self, request: int, n: int) -> None:
        """Handle the report that a launch has ended, and launch what that allows."""
        ...


class Dynamic:
    """The scheduler decides whenever something has ended.

    It is told that a segment has ended as soon as its device can take another, which may be before; what it then starts is
    launched behind. A link likewise. That a tensor has arrived it is told when that is so. On devices that compute in the
    host's memory an end is told when it has come, since no stream of another device could wait for it, and so it is on devices
    that share hardware, which never run at the same time.
    """

    def __init__(self, launcher: Launcher, ahead: int) -> None:
        layout, plan = launcher.layout, launcher.layout.work.plan
        self._launcher, self._layout = launcher, layout
        conflicts, memory = plan.problem.conflicts, launcher.accelerator.memory
        self._ahead = [ahead if memory(d) != HOST and not conflicts[d].any() else 1 for d in layout.streams]  # by stream
        self._scheduler = Scheduler(plan.problem, plan.placement, links="channel", queue="priority")
        self._clocks = Clocks(len(layout.streams))
        self._marks: list[dict[int, Mark]] = [{} for _ in launcher.slots]  # what each request has launched
        self._arrives = {legs[-1]: move for move, legs in layout.moves.items()}
        self._reported = {n for n in chain(layout.runs, *layout.device_to_host, self._arrives) if n is not None}
        self._queued = [0] * len(layout.streams)  # launches that have not been reported, by stream
        self._held: list[dict[tuple[int, int], Callable[[], list[Instruction]]]] = [{} for _ in layout.streams]

    def begin(self, request: int) -> None:
        """Copy the inputs, and launch what needs nothing else."""
        self._launcher.slots[request].decided = False
        self._marks[request].clear()
        for n in self._layout.host_to_device:
            self._launch(request, n)
        self._follow(self._scheduler.begin(request))

    def ended(self, request: int, n: int) -> None:
        """Inform the scheduler, and follow its instructions."""
        stream = self._layout.launches[n].stream
        self._clocks.ended(self._marks[request][n])
        self._queued[stream] -= 1
        held = self._held[stream]
        if (request, n) in held:
            self._follow(held.pop((request, n))())
        if n in self._arrives:
            self._follow(self._scheduler.transfer_finished(request, *self._arrives[n]))
        while held and self._queued[stream] < self._ahead[stream]:
            self._follow(held.pop(next(iter(held)))())

    def _follow(self, instructions: list[Instruction]) -> None:
        scheduler, layout = self._scheduler, self._layout
        todo = deque(instructions)
        while todo:
            step = todo.popleft()
            if isinstance(step, Start):
                run = layout.runs[step.op]
                if run is None:
                    todo.extend(scheduler.op_finished(step.request, step.op))
                    continue
                self._launch(step.request, run)
                for n in layout.device_to_host[step.op]:
                    self._launch(step.request, n)
                done = functools.partial(scheduler.op_finished, step.request, step.op)
                todo.extend(self._when_there_is_room(step.request, run, done))
            elif isinstance(step, RequestDone):
                self._launcher.slots[step.request].decided = True
            else:
                legs = layout.moves.get((step.tensor, step.dst))
                if legs is None:
                    todo.extend(scheduler.transfer_finished(step.request, step.tensor, step.dst))
                    continue
                for n in legs:
                    self._launch(step.request, n)
                sent = functools.partial(scheduler.transfer_sent, step.request, step.tensor, step.dst)
                todo.extend(self._when_there_is_room(step.request, legs[-1], sent))

    def _when_there_is_room(self, request: int, n: int, tell: Callable[[], list[Instruction]]) -> list[Instruction]:
        """Tell the scheduler that a stream can take more than this launch: now, or when less is queued there."""
        stream = self._layout.launches[n].stream
        if self._queued[stream] < self._ahead[stream]:
            return tell()
        self._held[stream][request, n] = tell
        return []

    def _launch(self, request: int, n: int) -> None:
        launcher, launch, marks = self._launcher, self._layout.launches[n], self._marks[request]
        marks[n], waits = self._clocks.launch(n, launch.stream, [marks[m] for m in launch.after])
        launcher.start(request, n, [mark.launch for mark in waits])
        if n in self._reported:
            self._queued[launch.stream] += 1
            launcher.expect(request, n, launcher.streams[launch.stream])


class Static:
    """Launches the whole request at once, in the order of the layout."""

    def __init__(self, launcher: Launcher) -> None:
        layout = launcher.layout
        self._launcher, self._ends = launcher, layout.ends
        clocks, marks = Clocks(len(layout.streams)), list[Mark]()
        self._waits: list[list[int]] = []
        for n, launch in enumerate(layout.launches):
            mark, waits = clocks.launch(n, launch.stream, [marks[m] for m in launch.after])
            marks.append(mark)
            self._waits.append([wait.launch for wait in waits])
        self._recorded = {n for waits in self._waits for n in waits} | set(layout.ends)

    def begin(self, request: int) -> None:
        """Launch the whole request, and request reports of its ends."""
        self.launch(request)
        for n in self._ends:
            launcher = self._launcher
            launcher.expect(request, n, launcher.streams[launcher.layout.launches[n].stream])

    def ended(self, request: int, n: int) -> None:
        """Do nothing: everything has been launched."""

    def launch(self, request: int) -> None:
        """Launch the whole request."""
        for n, waits in enumerate(self._waits):
            self._launcher.start(request, n, waits, record=n in self._recorded)


class Graph:
    """The static order, captured once for each request.

    Raises:
        DeviceError: the accelerator cannot capture it.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        static = Static(launcher)
        self._replays: list[Replay] = []
        for request in range(len(launcher.slots)):
            launches = functools.partial(static.launch, request)
            launches()  # so that libraries have set themselves up
            launcher.finish()
            self._replays.append(launcher.accelerator.capture(launcher.streams, launches))

    def begin(self, request: int) -> None:
        """Replay the request, and request a report of its end."""
        launcher = self._launcher
        self._replays[request]()
        last, stream = launcher.layout.ends[0], launcher.streams[0]
        launcher.accelerator.record(launcher.slots[request].events[last], stream)
        launcher.expect(request, last, stream)

    def ended(self, request: int, n: int) -> None:
        """Do nothing: everything has been launched."""
