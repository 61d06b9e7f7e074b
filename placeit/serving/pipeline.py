"""Pipelines of several models: items pass through stages, each of which submits any number of requests per item."""

from __future__ import annotations

import functools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from placeit.backends.base import Arrays
from placeit.core.errors import DeadlineError, ExecutionError, QueueFullError, UsageError
from placeit.core.threads import CHECK_S, Gate, Worker, apart
from placeit.runtime.feed import Outcome
from placeit.runtime.plan_executor import check_process
from placeit.serving.server import PATIENCE_S, Answer, Outputs, Server

__all__ = ["Pipeline", "Stage"]


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline: it splits an item into requests, and joins their outputs to the item for the next stage.

    Attributes:
        name: of the stage.
        server: runs its requests.
        split: returns the inputs of each request for an item; there may be no request at all.
        join: returns the item for the next stage, given an item and the outputs of its requests, in the order of ``split``.
    """

    name: str
    server: Server
    split: Callable[[Any], Sequence[Arrays]]
    join: Callable[[Any, Sequence[Outputs]], Any]


@dataclass(eq=False)
class _Tuple:
    """An item in the pipeline, its current stage, and its requests there."""

    item: Any
    stage: str
    future: Outcome[Any] = field(default_factory=Outcome)
    answers: list[Answer] = field(default_factory=list)
    error: BaseException | None = None

    def end(self) -> None:
        """Resolve the future with the item or its error, unless the future has ended."""
        self.future.end(self._tell)

    def _tell(self, future: Future[Any]) -> None:
        if self.error is None:
            future.set_result(self.item)
        else:
            future.set_exception(self.error)


class Pipeline:
    """Takes items through stages, in order. Use it as a context manager, or call :meth:`close`.

    Every item that is submitted ends in its future exactly once, in the order of submission. One that fails goes no further,
    and the others go on. At most ``window`` items are under way. That bounds every queue between stages, and makes
    :meth:`submit` wait while a stage is slow.

    Each stage has a thread, which runs its ``split`` and the ``join`` of the stage before. One more thread runs the last
    ``join`` and the callbacks of futures. These functions must not close the pipeline, or wait for room in it.

    Args:
        stages: at least one. The pipeline does not close their servers.
        window: items under way, at most.

    Attributes:
        entered: number of items that were submitted.
        left: number of items that have ended, well or not.
        requests: number of requests that each stage has submitted to its server, by the stage's name.
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
        self._room: Gate | None = None  # opens when an item leaves; None if no thread waits for room
        self._under_way: deque[_Tuple] = deque()
        self._closed = self._dropping = self._over = False
        self._first = stages[0].name
        self._queues: list[SimpleQueue[_Tuple | None]] = [SimpleQueue() for _ in range(len(stages) + 1)]
        self._workers: list[Worker] = []
        self._threads: set[int] = set()
        self._ended = Gate()
        for number, stage in enumerate(stages):
            before = stages[number - 1] if number else None
            self._start(f"placeit stage {stage.name}", functools.partial(self._work, number, stage, before))
        self._start("placeit sink", functools.partial(self._sink, stages[-1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close(drain=kind is None)

    def submit(self, item: Any, *, timeout: float | None = None) -> Future[Any]:
        """Submit an item, and return its future; the result is the item as the last stage makes it.

        Args:
            item: for the first stage.
            timeout: seconds to wait at most while ``window`` items are under way; None for as long as it takes.

        Raises:
            QueueFullError: there is no room until the time-out; or there is no room now, and the caller is a function of a
                stage or a callback of one of the pipeline's futures.
            ExecutionError: the pipeline is closed.
        """
        check_process(self._process)
        until = math.inf if timeout is None else perf_counter() + timeout
        made = _Tuple(item, self._first)
        while True:
            with self._lock:
                if self._closed:
                    raise ExecutionError("This pipeline is closed: make a new one.")
                if len(self._under_way) < self.window:
                    self._queues[0].put(made)  # first: an interrupt after it must not leave an item that no stage has
                    self._under_way.append(made)
                    self.entered += 1
                    return made.future
                room = self._room = self._room or Gate()
            if threading.get_ident() in self._threads:
                raise QueueFullError(
                    f"{self._held_up()}, and none can leave while a callback or a function of a stage waits: submit elsewhere."
                )
            left = until - perf_counter()
            if left <= 0:
                raise QueueFullError(f"No item has left the pipeline for {timeout:g} s: {self._held_up()}.")
            room.wait(min(left, CHECK_S))

    def map(self, items: Iterable[Any], *, timeout: float | None = None) -> Iterator[Any]:
        """Yield the results of items in their order. At most ``window`` items are taken beyond the results that were yielded.

        Args:
            items: for the first stage.
            timeout: seconds to wait at most for room, and for each result; None for as long as it takes.

        Raises:
            Exception: the error of an item that failed, raised in place of its result.
            DeadlineError: a result takes longer than ``timeout``.
        """
        under_way: deque[Future[Any]] = deque()
        for item in items:
            if len(under_way) == self.window:
                yield self._result(under_way.popleft(), timeout)
            under_way.append(self.submit(item, timeout=timeout))
        while under_way:
            yield self._result(under_way.popleft(), timeout)

    def _result(self, future: Future[Any], timeout: float | None) -> Any:
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():  # it has ended just now, or the item's own error is a TimeoutError
                return future.result()
            raise DeadlineError(f"No result for {timeout:g} s: {self._held_up()}.") from None

    def _held_up(self) -> str:
        """Return how many items are under way, and the stage of the first of them, for messages."""
        with self._lock:
            count, stage = len(self._under_way), self._under_way[0].stage if self._under_way else None
        return f"{count} items are under way" + (f", the first of them at the stage '{stage}'" if stage is not None else "")

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Finish every item, and stop. A second call has no effect.

        A separate thread closes the pipeline. It goes on to the end even if the calling thread, which waits, is interrupted.

        Args:
            drain: whether items still go through their remaining stages; otherwise they fail when they come to the next one.
            timeout: seconds to wait at most, after which every item that is left fails; None for no limit if it drains, and
                ten seconds otherwise.

        Raises:
            ExecutionError: the caller is a callback of one of its futures, or a function of a stage.
        """
        if os.getpid() != self._process:
            return
        if threading.get_ident() in self._threads:
            raise ExecutionError(
                "Neither a callback nor a function of a stage can close a pipeline, which waits for them to end."
            )
        apart(functools.partial(self._close, drain, timeout))

    def _close(self, drain: bool, timeout: float | None) -> None:
        """Close the pipeline, on a thread where no signal handler raises; several threads may do so at once."""
        with self._lock:
            first, self._closed = not self._closed, True
            self._dropping |= not drain
            if first:
                self._queues[0].put(None)
        until = perf_counter() + ((math.inf if drain else PATIENCE_S) if timeout is None else timeout)
        while not self._over and not self._ended.wait(max(0.0, min(CHECK_S, until - perf_counter()))):
            if perf_counter() >= until or not all(worker.alive for worker in self._workers):
                break
        with self._lock:
            left = [*self._under_way]
            self._under_way.clear()
            self.left += len(left)
            self._over = self._dropping = True
        for one in left:
            one.error = ExecutionError(f"The pipeline was closed before this item had gone through the stage '{one.stage}'.")
            one.end()
        for worker in self._workers:
            if self._ended.is_open:
                worker.close()
            else:
                with suppress(ExecutionError):  # the thread ends already
                    worker.submit(worker.close)

    def _start(self, name: str, job: Callable[[], None]) -> None:
        """Run a job on a new thread, which must not wait for the pipeline until the job has ended."""

        def work() -> None:
            self._threads.add(thread := threading.get_ident())
            job()
            self._threads.remove(thread)

        self._workers.append(Worker(name))
        self._workers[-1].submit(work)

    def _work(self, number: int, stage: Stage, before: Stage | None) -> None:
        """Run a stage: join each item at the stage before, and submit its requests here."""
        outbox = self._queues[number + 1]

        def go_on(one: _Tuple) -> None:
            if one.error is None:
                self._ask(one, stage)
            outbox.put(one)

        self._each(self._queues[number], before, go_on)
        outbox.put(None)

    def _each(self, inbox: SimpleQueue[_Tuple | None], before: Stage | None, go_on: Callable[[_Tuple], None]) -> None:
        """Join each item of a queue at the stage before, and pass it to ``go_on``; after a failure, with the error."""
        one: _Tuple | None = None
        while True:
            try:
                if one is None and (one := inbox.get()) is None:
                    return
                self._join(one, before)
                go_on(one)
                one = None
            except BaseException as error:  # noqa: BLE001 (any error belongs to this item, and others follow)
                if one is not None:
                    one.error = error

    def _ask(self, one: _Tuple, stage: Stage) -> None:
        """Submit the requests of an item at a stage."""
        one.stage = stage.name
        if self._dropping:
            raise ExecutionError(f"The pipeline was closed before this item had come to the stage '{stage.name}'.")
        for inputs in stage.split(one.item):
            one.answers.append(stage.server.submit(inputs))
            self.requests[stage.name] += 1

    def _join(self, one: _Tuple, stage: Stage | None) -> None:
        """Wait for the requests of an item at a stage, and replace the item by the item for the next stage."""
        if one.error is None and stage is not None:
            try:
                one.item = stage.join(one.item, [answer.result() for answer in one.answers])
                one.answers = []
            except BaseException as error:  # noqa: BLE001
                one.error = error
        if one.error is not None:
            while one.answers:
                if not one.answers[0].cancel():
                    one.answers[0].exception()  # waits until it has ended
                one.answers.pop(0)

    def _sink(self, last: Stage) -> None:
        """Join items at the last stage, and resolve their futures."""
        self._each(self._queues[-1], last, self._leave)
        self._ended.open()

    def _leave(self, one: _Tuple) -> None:
        with self._lock:
            if self._under_way and self._under_way[0] is one:
                self._under_way.popleft()
                self.left += 1
            if self._room is not None:
                self._room.open()
                self._room = None
        one.end()
