"""Several models one after the other: items go through stages, and each asks a server for any number of requests per item."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError, QueueFullError, UsageError
from placeit.runtime.devices.worker import Gate, Worker
from placeit.runtime.feed import Outcome
from placeit.runtime.plan_executor import check_process
from placeit.runtime.serving import Answer, Outputs, Server

__all__ = ["Pipeline", "Stage"]

_LOOK_S = 0.5


@dataclass(frozen=True)
class Stage:
    """What happens to each item.

    Attributes:
        name: of the stage.
        server: runs its requests.
        split: gives the inputs of the requests that an item leads to: any number of them, also none.
        join: makes the item for the next stage of an item and the outputs of its requests, in the order of ``split``.
    """

    name: str
    server: Server
    split: Callable[[Any], Sequence[Arrays]]
    join: Callable[[Any, Sequence[Outputs]], Any]


@dataclass(eq=False)
class _Tuple:
    """An item on its way, and what it waits for."""

    item: Any
    future: Outcome[Any] = field(default_factory=Outcome)
    answers: Sequence[Answer] = ()
    error: BaseException | None = None


class Pipeline:
    """Takes items through stages, in order. Use it as a context manager, or call :meth:`close`.

    Every item that is submitted ends in its future exactly once, in the order of submission. One that fails goes no further,
    and the others go on. At most ``window`` items are under way: that bounds every queue between stages, and holds up who
    submits while a stage is slow.

    Each stage has a thread, on which ``split`` runs, and ``join`` of the stage before; the last ``join``, and callbacks of
    futures, run on one more.

    Args:
        stages: at least one. Their servers are closed by those who made them.
        window: items under way, at most.

    Attributes:
        entered: items that were submitted.
        left: items that have ended, well or not.
        requests: of each stage, by name, that were submitted to its server.
    """

    def __init__(self, stages: Sequence[Stage], *, window: int = 16) -> None:
        if not stages:
            raise UsageError("A pipeline needs a stage at least.")
        if window < 1:
            raise UsageError(f"At least one item has to be under way; got {window}.")
        if len({stage.name for stage in stages}) < len(stages):
            raise UsageError("Two stages have the same name.")
        self.window, self.entered, self.left = window, 0, 0
        self.requests = {stage.name: 0 for stage in stages}
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._blocked: list[Gate] = []
        self._closed = self._dropping = False
        self._queues: list[SimpleQueue[_Tuple | None]] = [SimpleQueue() for _ in range(len(stages) + 1)]
        self._workers: list[Worker] = []
        self._ended = Gate()
        for number, stage in enumerate(stages):
            before = stages[number - 1] if number else None
            self._workers.append(Worker(f"placeit stage {stage.name}"))
            self._workers[-1].submit(lambda number=number, stage=stage, before=before: self._work(number, stage, before))  # type: ignore[misc]
        self._workers.append(Worker("placeit sink"))
        self._workers[-1].submit(lambda: self._sink(stages[-1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close(drain=kind is None)

    def submit(self, item: Any, *, timeout: float | None = None) -> Future[Any]:
        """Have an item go through all stages; its future has what the last one makes of it.

        Args:
            item: for the first stage.
            timeout: seconds to wait at most while ``window`` items are under way; None for as long as it takes.

        Raises:
            QueueFullError: that many are, and stay so.
            ExecutionError: the pipeline is closed.
        """
        check_process(self._process)
        until = None if timeout is None else perf_counter() + timeout
        made = _Tuple(item)
        while True:
            with self._lock:
                if self._closed:
                    raise ExecutionError("This pipeline is closed: make a new one.")
                if self.entered - self.left < self.window:
                    self.entered += 1
                    self._queues[0].put(made)
                    return made.future
                gate = Gate()
                self._blocked.append(gate)
            remaining = _LOOK_S if until is None else until - perf_counter()
            if remaining <= 0:
                raise QueueFullError(f"{self.window} items are under way, and none has left the pipeline for {timeout:g} s.")
            gate.wait(min(remaining, _LOOK_S))

    def map(self, items: Iterable[Any], *, timeout: float | None = None) -> Iterator[Any]:
        """Take items through, and give the results in their order; no more items are taken than ``window`` beyond the results.

        Args:
            items: for the first stage.
            timeout: seconds to wait at most for room, and for each result.

        Raises:
            Whatever an item has failed with, when its turn has come.
            TimeoutError: a result takes longer.
        """
        under_way: deque[Future[Any]] = deque()
        for item in items:
            if len(under_way) == self.window:
                yield under_way.popleft().result(timeout)
            under_way.append(self.submit(item, timeout=timeout))
        while under_way:
            yield under_way.popleft().result(timeout)

    def close(self, *, drain: bool = True) -> None:
        """Finish every item, or, if it does not ``drain``, fail those that are between stages; a second call has no effect."""
        if os.getpid() != self._process:
            return
        with self._lock:
            first, self._closed = not self._closed, True
            self._dropping |= not drain
            if first:
                self._queues[0].put(None)
        while not self._ended.wait(_LOOK_S):
            for worker in self._workers:
                worker.check()
        for worker in self._workers:
            worker.close()

    def _work(self, number: int, stage: Stage, before: Stage | None) -> None:
        inbox, outbox = self._queues[number], self._queues[number + 1]
        while (one := inbox.get()) is not None:
            self._join(one, before)
            if one.error is None:
                try:
                    if self._dropping:
                        raise ExecutionError("The pipeline was closed before this item had gone through.")
                    requests = stage.split(one.item)
                    one.answers = [stage.server.submit(inputs) for inputs in requests]
                    self.requests[stage.name] += len(one.answers)
                except BaseException as error:  # noqa: BLE001 (whatever it is, it is this item's)
                    one.error = error
            outbox.put(one)
        outbox.put(None)

    def _join(self, one: _Tuple, stage: Stage | None) -> None:
        """Wait for what an item has asked for in a stage, and make of it the item for the next one."""
        if one.error is not None or stage is None:
            return
        try:
            one.item = stage.join(one.item, [answer.result() for answer in one.answers])
        except BaseException as error:  # noqa: BLE001
            one.error = error
        one.answers = ()

    def _sink(self, last: Stage) -> None:
        while (one := self._queues[-1].get()) is not None:
            self._join(one, last)
            with self._lock:
                self.left += 1
                for gate in self._blocked:
                    gate.open()
                self._blocked.clear()
            if one.future.set_running_or_notify_cancel():
                with suppress(InvalidStateError):
                    if one.error is None:
                        one.future.set_result(one.item)
                    else:
                        one.future.set_exception(one.error)
        self._ended.open()
