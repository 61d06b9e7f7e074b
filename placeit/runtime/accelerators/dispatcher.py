"""Launch the segments and copies that the scheduler starts, whenever a launch has ended."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from itertools import chain

from placeit.runtime.accelerators.clocks import Clocks, Mark
from placeit.runtime.accelerators.launcher import Launcher
from placeit.runtime.devices.accelerator import HOST
from placeit.simulator.scheduler import Instruction, RequestDone, Scheduler, Start

__all__ = ["Dispatcher"]


class Dispatcher:
    """Executes the instructions of the scheduler, and launches ahead of time where streams allow it.

    The scheduler is told that a segment has ended as soon as its device can take another one, which may be before the end. The
    segments that the scheduler then starts are launched after it. Links are handled in the same way. The scheduler is told that
    a tensor has arrived when its copy has ended. Between two devices with one memory nothing is copied: the tensor has arrived
    when the launch that writes it has ended.

    Nothing is launched ahead on devices that compute in the host's memory, since streams of other devices cannot wait for
    them, or on devices that share hardware, since they never run at the same time.

    Args:
        launcher: the requests, streams and launches.
        ahead: maximum number of segments queued on a device, and of tensors on a link, including the running one.
    """

    def __init__(self, launcher: Launcher, ahead: int) -> None:
        layout, plan = launcher.layout, launcher.layout.work.plan
        self._launcher, self._layout = launcher, layout
        conflicts, memory = plan.problem.conflicts, launcher.accelerator.memory
        self._ahead = [ahead if memory(d) != HOST and not conflicts[d].any() else 1 for d in layout.streams]  # by stream
        self._scheduler = Scheduler(plan.problem, plan.placement)
        self._clocks = Clocks(len(layout.streams))
        self._marks: list[dict[int, Mark]] = [{} for _ in launcher.slots]  # by request: the mark of each launch
        self._arrivals = {legs[-1]: move for move, legs in layout.moves.items()}
        self._reported = {n for n in chain(layout.runs, *layout.device_to_host, self._arrivals) if n is not None}
        self._reported.update(layout.makers.values())
        self._uncopied: dict[tuple[int, int], list[tuple[int, int]]] = {}  # transfers without a copy, by launch
        self._queued = [0] * len(layout.streams)  # launches that have not been reported, by stream
        self._deferred: list[dict[tuple[int, int], Callable[[], list[Instruction]]]] = [{} for _ in layout.streams]

    def begin(self, request: int) -> None:
        """Begin a request: copy its inputs, and launch the segments that need only these."""
        if self._launcher.batched:
            self._launcher.start_all(request)
            return
        self._launcher.slots[request].all_launched = False
        self._marks[request].clear()
        for n in self._layout.host_to_device:
            self._launch(request, n)
        self._execute(self._scheduler.begin(request))

    def ended(self, request: int, n: int) -> None:
        """Tell the scheduler that a launch has ended, and execute its instructions."""
        if self._launcher.batched:
            return
        stream = self._layout.launches[n].stream
        self._clocks.ended(self._marks[request][n])
        self._queued[stream] -= 1
        deferred = self._deferred[stream]
        if (request, n) in deferred:
            self._execute(deferred.pop((request, n))())
        if n in self._arrivals:
            self._execute(self._scheduler.transfer_finished(request, *self._arrivals[n]))
        if (request, n) in self._uncopied:
            for move in self._uncopied.pop((request, n)):
                self._execute(self._scheduler.transfer_finished(request, *move))
        while deferred and self._queued[stream] < self._ahead[stream]:
            self._execute(deferred.pop(next(iter(deferred)))())

    def _execute(self, instructions: list[Instruction]) -> None:
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
                self._launcher.slots[step.request].all_launched = True
            else:
                legs = layout.moves.get((step.tensor, step.dst))
                maker = layout.makers.get((step.tensor, step.dst))
                slot, marks = self._launcher.slots[step.request], self._marks[step.request]
                if maker is not None and (maker not in marks or maker in slot.pending):
                    self._uncopied.setdefault((step.request, maker), []).append((step.tensor, step.dst))
                elif legs is None:
                    todo.extend(scheduler.transfer_finished(step.request, step.tensor, step.dst))
                else:
                    for n in legs:
                        self._launch(step.request, n)
                    sent = functools.partial(scheduler.transfer_sent, step.request, step.tensor, step.dst)
                    todo.extend(self._when_there_is_room(step.request, legs[-1], sent))

    def _when_there_is_room(self, request: int, n: int, tell: Callable[[], list[Instruction]]) -> list[Instruction]:
        """Tell the scheduler that a stream accepts more launches after this one: now, or when fewer are queued there."""
        stream = self._layout.launches[n].stream
        if self._queued[stream] < self._ahead[stream]:
            return tell()
        self._deferred[stream][request, n] = tell
        return []

    def _launch(self, request: int, n: int) -> None:
        launcher, launch, marks = self._launcher, self._layout.launches[n], self._marks[request]
        after = launch.after
        marks[n], waits = self._clocks.launch(n, launch.stream, [marks[m] for m in after] if after else ())
        launcher.start(request, n, [mark.launch for mark in waits] if waits else ())
        if n in self._reported:
            self._queued[launch.stream] += 1
            launcher.expect(request, n, launcher.streams[launch.stream])
