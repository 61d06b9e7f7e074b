"""Replacement of a server's replicas: of lost ones, of a plan by a candidate, and of executors by better ones."""

from __future__ import annotations

import contextlib
from collections import abc
from time import perf_counter

from placeit.core.errors import PlaceitError
from placeit.planning.segments import Plan
from placeit.runtime.calls import failure_of
from placeit.runtime.feed import report
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.admitting import Admitting
from placeit.serving.answers import fail
from placeit.serving.batching import Batches, Joining
from placeit.serving.replica import Replace, Replacement, Replica
from placeit.serving.replica_thread import ReplicaThread
from placeit.serving.stepping import Stepping, Steps

__all__ = ["Replacing"]


class Replacing(Admitting):
    """The part of a server that makes, replaces and closes replicas.

    Args:
        executors: of the same model, for this server alone.
        queue: most waiting requests, without the requests in flight.
        replace: makes a replacement for a lost executor; None for no replacement.
        state_memory: bytes that the states of all sequences may take; None for half of the memory that is free now.
        joining: rules for batches, which are measured on each executor first, or why there are none; None for no batches.
        steps: rules for joined steps, which are tried on each executor first; None for no joined steps.

    Attributes:
        vacant: number of lost executors that were not replaced.
    """

    def __init__(
        self,
        executors: abc.Sequence[PlanExecutor],
        queue: int,
        replace: Replace | None,
        state_memory: float | None,
        joining: Joining | str | None,
        steps: Steps | None,
    ) -> None:
        super().__init__(executors[0], queue, state_memory)
        self._apart = joining if isinstance(joining, str) else None  # why requests cannot be joined
        self._joining = None if isinstance(joining, str) else joining
        self._steps = steps
        self._replace, self._replacing = replace, 0
        self.vacant = 0
        made = [self._made(executor) for executor in executors]
        for replica in made:
            self._add(replica)
        for replica in made:
            replica.start()

    @property
    def plan(self) -> Plan:
        """The plan that serves, on a server with a single replica."""
        return self._replicas[0].executor.plan

    @property
    def executors(self) -> list[PlanExecutor]:
        """The executors that serve requests now."""
        return [replica.executor for replica in self._replicas if replica.able]

    @property
    def exploring(self) -> bool:
        """True if there is a candidate that can run."""
        return any(replica.exploring and replica.able for replica in self._replicas)

    def _made(self, executor: PlanExecutor, replacement: Replacement | None = None, *, every: int = 0) -> ReplicaThread:
        """Make a replica, which the caller adds and starts."""
        batches = Batches(why=self._apart) if self._joining is None else self._joining.on(executor)
        stepping = None if self._steps is None else Stepping(self._steps, executor)
        replica = ReplicaThread(self, executor, self.lose, replacement, every=every)
        replica.batches, replica.stepping = batches, stepping
        return replica

    def _add(self, replica: Replica) -> None:
        """Add a replica, which the caller starts."""
        if replica.slots is not None:
            self._numbered[replica.slots.number] = replica
        self._replicas = [*self._replicas, replica]

    def lose(self, replica: Replica, error: PlaceitError) -> None:
        """Replace a replica that cannot run requests any more, or fail the waiting requests if no replica is left."""
        noticed, happened = perf_counter(), self.happened
        happened("lost", str(error), until=noticed)
        self.again(replica, error)
        with self._lock:
            replica.lost = True
            self.sequences.lose(replica, error)
            self._replacing += 1
            left = [other.executor for other in self._replicas if other.able and not other.exploring]
            self._wake_replicas()
        made = None
        try:
            if self._replace is not None and not (self._over or replica.exploring or replica.retired):
                executor, by = self._replace(replica.executor, left, error)
                ready, where = perf_counter(), ", ".join(by.devices)
                happened("silence", str(error), seconds=by.silent_s, until=noticed)
                happened("decision", where, seconds=by.decided_s, until=ready - by.compiled_s)
                happened("compiling and loading", where, seconds=by.compiled_s, until=ready)
                made = self._made(executor, by)
        except PlaceitError as failure:
            error = failure
        except BaseException as failure:  # noqa: BLE001 (after any error, futures have to fail with it)
            error = failure_of(f"{error} And no other placement was found", failure)
        try:
            replica.executor.close()
        except BaseException as failure:  # noqa: BLE001 (the requests that wait have to run, or to fail)
            report("A lost executor could not be closed:", failure)
        with self._lock:
            self._replacing -= 1
            dropped = []
            over = self._over
            self.vacant += made is None and not (replica.exploring or replica.retired)
            if made is not None and not over:
                self._add(made)
                made.start()
                self._sort()
            elif not any(other.able for other in self._replicas) and not self._replacing:
                self._reason = error
                happened("nothing is left", str(error))
                dropped = self._drop()
                self.queued.make_room()
        fail(dropped, error)
        if made is not None and over:
            made.close()

    def explore(self, executor: PlanExecutor, every: int) -> None:
        """Have a candidate serve one request in ``every``, one at a time; it is closed with the server, or by :meth:`settle`.

        Raises:
            ExecutionError: the server is closed.
            DeviceError: no thread can be started for it.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(executor.close)
            replica = self._made(executor, every=every)
            stack.callback(replica.close)
            with self._lock:
                if self._closed:
                    replica.gone.open()
                    raise self._why()
                self._every, self._since = every, 0
                self._add(replica)
                self._sort()
            replica.start()
            stack.pop_all()

    def settle(self, *, adopt: bool) -> bool:
        """Switch to the candidate if ``adopt`` and it can run, else drop it; close the replicas that no longer serve.

        Returns:
            Whether the candidate serves.
        """
        with self._lock:
            adopt = adopt and self.exploring
            leaving = [replica for replica in self._replicas if replica.exploring != adopt]
            for replica in self._replicas:
                replica.adopt()
                if replica in leaving:
                    replica.retire()
                else:
                    replica.bell.ring()
            self._sort()
            self._wake_replicas()
        self._leave(leaving)
        return adopt

    def _leave(self, leaving: abc.Sequence[Replica]) -> None:
        """Close replicas that get no more requests, once their last requests are over."""
        for replica in leaving:
            replica.gone.wait()
        self.sequences.leave(leaving)
        with self._lock:
            self._replicas = [replica for replica in self._replicas if replica not in leaving]
        for replica in leaving:
            replica.close()

    def exchange(
        self, leaving: abc.Sequence[PlanExecutor], executors: abc.Sequence[PlanExecutor], replacement: Replacement
    ) -> bool:
        """Replace executors by others; the replaced ones are closed when their requests have ended.

        Args:
            leaving: the executors to replace; empty to fill the places of executors that were lost.
            executors: the new ones, of the same model; closed with the server.
            replacement: the record of the replacement.

        Returns:
            False if the server is closed, or does not have the executors to replace: then nothing has changed.

        Raises:
            DeviceError: no thread can be started for an executor.
        """
        self.happened("compiling and loading", ", ".join(replacement.devices), seconds=replacement.compiled_s)
        made = [self._made(executor, None if k else replacement) for k, executor in enumerate(executors)]
        with self._lock:
            left = [other for other in self._replicas if other.executor in leaving and other.able]
            there = len(left) == len(leaving) if leaving else self.vacant > 0
            wanted = not self._closed and self._reason is None and there
            if wanted:
                self.vacant = max(0, self.vacant + len(left) - len(made))
                for replica in made:
                    self._add(replica)
                    replica.start()
                for other in left:
                    other.retire()
                self._sort()
                self._wake_replicas()
        if wanted:
            self._leave(left)
        else:
            for replica in made:
                replica.discard()
        return wanted
