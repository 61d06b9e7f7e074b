"""Adapt a server to its devices: move to devices that come back, and away from slow ones, if that is worth the move.

After a loss, the model is placed again at once (:data:`placeit.serving.server.Replace`), not by this module.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from placeit.core.errors import PlaceitError
from placeit.core.threads import Gate, Worker
from placeit.core.units import percentage
from placeit.measuring.measure import FAILURES
from placeit.planning.moving import Moves
from placeit.planning.segments import Plan
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.attendant import Attendant
from placeit.serving.replica import Replacement
from placeit.serving.server import Server
from placeit.workbench.recovery import Better, ExpectedTimes, Recovery

__all__ = ["Adapter", "Pace"]

_LOG = logging.getLogger("placeit")

_POLL_S = 1.0  # seconds between two checks of the devices
_CHECKS, _MIN_REQUESTS = 3, 5  # checks in a row that have to show a change, and minimum number of requests of each check
_SLOW = 2.0  # factor by which the time of a device has to change; less may come from other devices that are busy
_PAUSE_S, _MAX_PAUSE_S = 2.0, 60.0  # first and longest pause between searches for lost devices
_RETRY_S, _MAX_RETRY_S = 30.0, 600.0  # first and longest wait before a slow device that is not used is tried again
_CALM_S = 600.0  # seconds without a loss after which the first pause applies again


class Pace:
    """Ratio of measured to expected seconds on each device."""

    def __init__(self) -> None:
        self._new: dict[str, list[float]] = {}
        self._seen: dict[str, deque[float]] = {}

    def add(self, name: str, ratio: float) -> None:
        """Add the ratio of a request on a device."""
        self._new.setdefault(name, []).append(ratio)

    def changes(self, known: Mapping[str, float]) -> dict[str, float]:
        """Return the new ratios of devices that differ by a factor of two from their ``known`` ratios in three calls in a row.

        A call counts for a device if the device has five new requests; the median of their ratios counts. The new ratio is the
        median of the three calls, and at least 1.
        """
        changed = {}
        for name, ratios in self._new.items():
            if len(ratios) < _MIN_REQUESTS:
                continue
            seen, before = self._seen.setdefault(name, deque(maxlen=_CHECKS)), known.get(name, 1.0)
            seen.append(float(np.median(ratios)))
            ratios.clear()
            ratio = max(1.0, float(np.median(seen)))
            if len(seen) == _CHECKS and ratio != before and (min(seen) >= _SLOW * before or max(seen) * _SLOW <= before):
                changed[name] = ratio
        return changed

    def forget(self, name: str) -> None:
        """Forget the ratios of a device."""
        self._new.pop(name, None)
        self._seen.pop(name, None)


class Adapter(Attendant):
    """Adapts a server to its devices, on a separate thread. Another thread searches for lost devices, as that may hang.

    Args:
        server: the server to adapt.
        planning: plans and compiles placements, by the costs.
    """

    def __init__(self, server: Server, planning: Recovery) -> None:
        super().__init__("placeit adapting")
        self._server, self._planning = server, planning
        self._pace, self._moves = Pace(), Moves()
        self._expected: weakref.WeakKeyDictionary[Plan, ExpectedTimes] = weakref.WeakKeyDictionary()
        self._news: dict[str, str] = {}  # by device; a move has to involve one of these devices
        self._retries: dict[str, tuple[float, float]] = {}  # by slow device: when to try it again, and the wait until then
        self._searched: object = None  # state of devices and executors for which the last move was searched
        self._next_move: tuple[PlanExecutor | None, Better] | None = None
        self._lost = frozenset(planning.lost())
        # number of checks in a row in which a segment of an executor was running in a slot while its lane began nothing else
        self._at_work: dict[tuple[PlanExecutor, tuple[int, int, int]], int] = {}
        self._reopened: Gate | None = None  # opens when the search for lost devices has ended; None if no search runs
        self._pause = _PAUSE_S  # seconds until the next search for lost devices
        self._next_search, self._last_return = math.inf, -math.inf  # when to search, and when a device last came back

    def attend(self) -> None:
        """Check the devices once a second, until the adapter is closed."""
        while not self._closing.wait(_POLL_S):
            self._check(time.monotonic())

    def suspect(self, executor: PlanExecutor, error: PlaceitError) -> None:
        """Find out whether a device of an executor is lost; see :meth:`placeit.workbench.recovery.Recovery.suspect`."""
        self._planning.suspect(executor, error)

    def failed(self, error: BaseException) -> None:
        """Log a warning that the server no longer adapts, and why."""
        _LOG.warning("The server no longer adapts: %s", error)

    def _check(self, now: float) -> None:
        """Update the state of the devices, and move if that is worth it."""
        self._abandon_hung()
        lost = frozenset(self._planning.lost())
        self._update_lost(lost, now)
        self._update_pace(now)
        for name in (name for names in lost if len(names) == 1 for name in names):
            self._news.pop(name, None)
        executors = tuple(self._server.executors)
        state = lost, dict(self._planning.slow), dict(self._news), executors
        if state != self._searched:
            self._searched, self._next_move = state, self._find_move(executors)
            self._moves.stay()
        if self._next_move is not None and self._moves.due(now, self._next_move[1].saved, self._next_move[1].price):
            self._move(*self._next_move)

    def _abandon_hung(self) -> None:
        """Declare devices lost on which a segment hangs.

        Checks are counted, not seconds, since seconds also pass while this process is stopped.
        """
        before, self._at_work = self._at_work, {}
        for executor in self._server.executors:
            expected = self._expected_times(executor.plan)
            for work in executor.at_work() if expected else ():
                checks = self._at_work[executor, work] = before.get((executor, work), 0) + 1
                name, seconds = expected[work[0]]
                if checks * _POLL_S > self._planning.timeout(name, seconds):
                    self._planning.abandon(executor, name, checks * _POLL_S)

    def _update_lost(self, lost: frozenset[frozenset[str]], now: float) -> None:
        """Record devices and links that are back, and start a search for lost ones when it is due."""
        for names in self._lost - lost:
            what = " and ".join(sorted(names))
            for name in names:
                self._set_ratio(name, 1.0, f"{what} is back." if len(names) == 1 else f"The link between {what} is back.")
            # each return makes searches rarer, so that a device that is lost again and again costs little
            self._pause, self._last_return = min(2 * self._pause, _MAX_PAUSE_S), now
        self._lost = lost
        if self._reopened is not None:
            if self._reopened.is_open:
                self._reopened, self._next_search = None, now + self._pause
        elif not lost:
            self._next_search = math.inf
            if now >= self._last_return + _CALM_S:
                self._pause = _PAUSE_S
        elif math.isinf(self._next_search):
            self._next_search = now + self._pause
        elif now >= self._next_search:
            worker, self._reopened = Worker("placeit looking"), Gate()
            worker.submit(functools.partial(self._reopen, self._reopened))
            worker.submit(worker.close)

    def _reopen(self, ended: Gate) -> None:
        """Reopen the lost devices that are there again, then open a gate."""
        try:
            self._planning.reopen()
        except FAILURES as error:
            _LOG.warning("The search for lost devices failed: %s", error)
        finally:
            ended.open()

    def _update_pace(self, now: float) -> None:
        """Update the ratios of devices by the last requests, and reset slow devices that are due to be tried again."""
        for request in self.heard():
            for name, ratio in self._ratios(request.plan, {s: finish - start for s, start, finish in request.ran}).items():
                self._pace.add(name, ratio)
        for name, ratio in self._pace.changes(self._planning.slow).items():
            self._set_ratio(name, ratio, f"{name} takes {ratio:.1f} times as long as its costs say.")
        used = {name for executor in self._server.executors for name, _ in self._expected_times(executor.plan)}
        for name, (when, _) in [*self._retries.items()]:
            if name not in used and now >= when and self._planning.slow.get(name, 1.0) > 1:
                self._set_ratio(name, 1.0, f"{name}, which was slow, was tried again.")

    def _ratios(self, plan: Plan, measured: Mapping[int, float]) -> dict[str, float]:
        """Return, by device, the ratio of the measured seconds of segments, by segment number, to the expected seconds."""
        measured_sum, expected_sum = dict[str, float](), dict[str, float]()
        expected = self._expected_times(plan)
        for s, seconds in measured.items() if expected else ():
            name, expected_s = expected[s]
            if expected_s > 0 and seconds > 0:
                measured_sum[name] = measured_sum.get(name, 0.0) + seconds
                expected_sum[name] = expected_sum.get(name, 0.0) + expected_s
        return {name: seconds / expected_sum[name] for name, seconds in measured_sum.items()}

    def _expected_times(self, plan: Plan) -> ExpectedTimes:
        if plan not in self._expected:
            self._expected[plan] = self._planning.expected_times(plan)
        return self._expected[plan]

    def _set_ratio(self, name: str, ratio: float, news: str) -> None:
        slow, now = {**self._planning.slow, name: ratio}, time.monotonic()
        if ratio > 1:
            _LOG.warning("%s", news)
            _, wait = self._retries.get(name, (0.0, _RETRY_S / 2))
            wait = min(2 * wait, _MAX_RETRY_S)
            self._retries[name] = now + wait, wait
        else:
            _LOG.info("%s", news)
            del slow[name]
        self._planning.slow = slow
        self._pace.forget(name)
        self._news[name] = news
        self._server.history.happened("news", news)

    def _find_move(self, executors: Sequence[PlanExecutor]) -> tuple[PlanExecutor | None, Better] | None:
        """Return the move that saves most, of moves from or to devices with news; None if no move saves time."""
        found: list[tuple[PlanExecutor | None, Better]] = []
        places: list[PlanExecutor | None] = [*executors, *([None] if self._server.vacant else [])]
        for executor in places if self._news else []:
            with contextlib.suppress(PlaceitError):  # no free devices can run it
                better = self._planning.better(executor, [one for one in executors if one is not executor])
                if better is not None:
                    decision = f"{', '.join(better.devices)} would save {percentage(better.saved)}, and moving there takes "
                    decision += f"{better.price:.1f} s."
                    self._server.history.happened("decision", decision, seconds=better.decided_s)
                current_devices = [] if executor is None else [name for name, _ in self._expected_times(executor.plan)]
                if better is not None and not self._news.keys().isdisjoint((*better.devices, *current_devices)):
                    found.append((executor, better))
        return max(found, key=lambda one: one[1].saved, default=None)

    def _move(self, leaving: PlanExecutor | None, better: Better) -> None:
        """Compile a better placement, and let it serve unless its devices turn out to be slow."""
        begin, self._next_move = perf_counter(), None
        old = [] if leaving is None else [leaving]
        current_devices = [name for one in old for name, _ in self._expected_times(one.plan)]
        why = " ".join(dict.fromkeys(news for name, news in self._news.items() if name in (*better.devices, *current_devices)))
        try:
            executor = self._planning.open(better.plan, better.priority)
        except FAILURES as error:
            _LOG.warning("A placement on %s was left out: %s", ", ".join(better.devices), error)
            self._server.history.happened("left out", str(error))
            return
        slow = self._planning.slow
        ratios = self._ratios(better.plan, dict(enumerate(executor.segment_seconds().tolist())))
        slower = {name: ratio for name, ratio in ratios.items() if ratio >= _SLOW * slow.get(name, 1.0)}
        for name, ratio in slower.items():
            self._set_ratio(name, ratio, f"{name} takes {ratio:.1f} times as long as its costs say.")
        replacement = Replacement(why, better.devices, 0.0, better.decided_s, perf_counter() - begin)
        if slower or not self._server.exchange(old, [executor], replacement):
            executor.close()
            return
        self._moves.moved(time.monotonic())
        self._news.clear()
