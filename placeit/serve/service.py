"""The models of a network server, and the handling of requests, for every protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from placeit.backends.base import Arrays
from placeit.core.errors import PlaceitError, UsageError
from placeit.core.version import __version__
from placeit.serve.client_sequences import Asked, Sequences
from placeit.serve.refusal import RefusedError, Status, refusal_of
from placeit.serve.served_model import Call, ServedModel
from placeit.serve.shared_memory import Regions
from placeit.serve.tracing import Traces
from placeit.serve.versions import Models
from placeit.serving.answers import Answer, Outputs
from placeit.serving.sequence import Sequence
from placeit.serving.server import Server

__all__ = ["APART_BYTES", "BRIEF_BYTES", "Service", "about_to_end"]

_LOG = logging.getLogger("placeit")
APART_BYTES: Final = 1 << 14
"""Bytes of JSON, or of tensors that become JSON, from which another thread converts them: about 2 ms of work."""
BRIEF_BYTES: Final = 1 << 18
"""Bytes of JSON up to which its conversion is brief."""
_COPIED: Final = 64  # bytes that are copied in the time in which one byte of JSON is converted
_APART = 2  # functions that run apart at a time
_EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "schedule_policy",
    "sequence",
    "statistics",
    "system_shared_memory",
    "trace",
)


T = TypeVar("T")
OnLeave: TypeAlias = Callable[[Callable[[], object]], Callable[[], object]]


class Service:
    """All models of a network server. Its methods are called on the thread of the event loop.

    Args:
        models: the models to serve, with different names or versions.
        absent: reasons why other models are not loaded, by name and version.
        shared_memory: whether clients may pass tensors in shared memory.
        priority_levels: number of priorities that requests may have; 0 if all have the same one.
        traces: writes the spans of requests; None for no spans.

    Attributes:
        models: the models that get requests.
        regions: shared memory that clients have registered.
        ending: set when no more requests are accepted.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        absent: Mapping[tuple[str, str], str] | None = None,
        *,
        shared_memory: bool = False,
        priority_levels: int = 0,
        traces: Traces | None = None,
    ) -> None:
        self.regions = Regions(allowed=shared_memory)
        self._traces, self._levels = traces, priority_levels
        self.models = Models()
        for model in models:
            if self.models.find(model.name, model.version) is not None:
                raise UsageError(f"Two models are to be served as '{model.name}': give one another name, as in NAME=PATH.")
            self.models.add(model)
        self._absent = {} if absent is None else absent
        if absent is None and not [*self.models]:
            raise UsageError("There is no model to serve.")
        self.ending = asyncio.Event()
        self._apart, self._brief = asyncio.Semaphore(_APART), asyncio.Semaphore(_APART)
        self._accepted = 0
        self._idle = asyncio.Event()
        self._uncounted = False  # whether it was logged that a request could not be counted

    async def apart(self, function: Callable[..., T], *args: Any, brief: bool = False) -> T:
        """Call a function on another thread, and return its result.

        Two functions run at a time, which leaves threads to other work, and two brief ones, which do not wait for others.

        Args:
            function: the function.
            *args: its arguments.
            brief: whether it takes a few hundredths of a second at most.
        """
        async with self._brief if brief else self._apart:
            return await asyncio.to_thread(function, *args)

    async def by_size(self, size: int, function: Callable[..., T], *args: Any, copied: int = 0) -> T:
        """Call a function, on another thread if it takes so long that others would wait.

        Args:
            size: bytes of JSON, or of tensors that become JSON, that it works on.
            function: the function.
            *args: its arguments.
            copied: other bytes that it copies or checks.
        """
        size += copied // _COPIED
        return function(*args) if size < APART_BYTES else await self.apart(function, *args, brief=size < BRIEF_BYTES)

    @property
    def draining(self) -> bool:
        """True if no more requests are accepted."""
        return self.ending.is_set()

    @property
    def traced(self) -> bool:
        """True if requests have spans, which need their headers."""
        return self._traces is not None

    @property
    def ready(self) -> bool:
        """True if requests are accepted, and every model has devices that run it."""
        return not self.draining and all(model.ready for model in self.models)

    @property
    def max_bytes(self) -> float:
        """Bytes of the largest request over gRPC that a model takes."""
        return max((model.max_bytes for model in self.models), default=math.inf)

    def metadata(self) -> dict[str, Any]:
        """Return the server's metadata, in the format of the protocol."""
        return {"name": "placeit", "version": __version__, "extensions": list(_EXTENSIONS)}

    def index(self) -> list[dict[str, Any]]:
        """Return the models and their states, in the format of Triton's repository index."""
        found = {(model.name, model.version): model.state for model in self.models}
        for key, why in self._absent.items():
            found.setdefault(key, ("UNAVAILABLE", why))
        return [
            {"name": name, "version": version, "state": state, "reason": why} for (name, version), (state, why) in found.items()
        ]

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return Triton's statistics of all models, of all versions of a name, or of one version. Raises RefusedError."""
        named = [self.model(name, version)] if name else []
        models = named if version and named else [one for one in self.models if name in ("", one.name)]
        return [model.statistics() for model in models]

    def model(self, name: str, version: str = "") -> ServedModel:
        """Return a model by its name and version, or in its newest version if that is empty. Raises RefusedError."""
        return self.models.get(name, version)

    @contextlib.contextmanager
    def accepted(self, name: str, version: str = "") -> Iterator[Call]:
        """Accept a request, which the server then finishes even if it has to end, and count its outcome.

        Raises:
            RefusedError: the model does not exist, or the server accepts no more requests.
        """
        call = Call(self.model(name, version), any_version=not version)
        if self.draining:
            raise about_to_end()
        self._accepted += 1
        call.model.accepted += 1
        well = False
        try:
            yield call
            well = True
        finally:
            self._accepted -= 1
            call.model.accepted -= 1
            self._look()
            self._count(call, well=well)

    def _count(self, call: Call, *, well: bool) -> None:
        """Count a request that has ended, and write its spans; log the first failure of that."""
        model = call.model
        try:
            model.ended(call, well=well)
            if self._traces is not None:
                self._traces.write(model.name, model.version, call.headers or {}, call.stages(), well=well)
        except Exception as error:  # noqa: BLE001 (the request has been answered)
            if not self._uncounted:
                _LOG.error("Requests are answered, but cannot be counted or traced: %s: %s", type(error).__name__, error)
            self._uncounted = True

    async def run(
        self,
        call: Call,
        inputs: Arrays,
        timeout_s: float | None = None,
        on_leave: OnLeave | None = None,
        sequence: Asked | None = None,
        priority: int = 0,
    ) -> Outputs:
        """Run the model of a request.

        Args:
            call: the request; its model is set to the one that runs it.
            inputs: by name.
            timeout_s: seconds from the begin of the request to its outputs; None for no limit.
            on_leave: registers a function to call when the client disconnects, and returns a function that undoes this; None
                if this call is cancelled then.
            sequence: its sequence; None if it belongs to no sequence.
            priority: priority from 1, which is the first; any other number means the last one.

        Raises:
            RefusedError: the request fails, or its time limit is over; it does not run if it has not begun by then.
        """
        until = math.inf if timeout_s is None else call.begun + timeout_s
        while True:
            call.submitted = time.perf_counter()
            submit = partial(_submit, inputs, until)
            if sequence is None:
                level = priority if 0 < priority <= self._levels else self._levels
                call.answer = submit(call.model.server, priority=level)
            else:
                call.answer = await self._sequences(call, sequence).submit(sequence, inputs, submit)
            outputs = await self._outputs(call, call.answer, until, on_leave)
            if outputs is not None:
                return outputs

    def _sequences(self, call: Call, asked: Asked) -> Sequences:
        """Return the sequences of a request's model, or of an earlier model or version that has its sequence and then runs it.

        Raises:
            RefusedError: the tensors of that model differ.
        """
        model = call.model
        if asked.name not in model.sequences and not asked.start:
            for other in [*reversed(self.models.leaving), *self.models]:
                same = other.name == model.name and (call.any_version or other.version == model.version)
                if same and asked.name in other.sequences:
                    if other.tensors != model.tensors:
                        why = f"The model '{model.name}' was replaced by one with other tensors: begin the sequence again."
                        raise RefusedError(Status.UNAVAILABLE, why)
                    call.model = other
                    model.accepted -= 1
                    other.accepted += 1
                    break
        return call.model.sequences

    async def _outputs(self, call: Call, answer: Answer, until: float, on_leave: OnLeave | None) -> Outputs | None:
        """Wait for the outputs of a request; return None if another client that waits for it cancels it."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()  # its result is whether the client has left

        def end(left: bool) -> None:
            if not over.done():
                over.set_result(left)

        def answered(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, False)

        stay = None if on_leave is None else on_leave(partial(end, True))
        timer = None if until == math.inf else loop.call_later(max(0.0, until - time.perf_counter()), end, False)
        answer.add_done_callback(answered)
        try:
            has_left = await over
        finally:
            if stay is not None:
                stay()
            if timer is not None:
                timer.cancel()
            ended, cancelled = answer.done(), answer.cancelled()
            if not ended:
                answer.cancel()  # takes the request out of the queue if it waits there
        if cancelled and not has_left:
            return None
        if not ended or cancelled:
            raise RefusedError(Status.GONE, "The client has gone.") if has_left else _late()
        try:
            outputs = answer.result()
        except PlaceitError as error:
            raise refusal_of(error) from error
        call.answered = time.perf_counter()
        return outputs

    async def drain(self) -> None:
        """Accept no more requests, and wait until the accepted ones have ended."""
        self.ending.set()
        self._look()
        await self._idle.wait()

    def _look(self) -> None:
        if self.draining and not self._accepted:
            self._idle.set()


def _submit(inputs: Arrays, until: float, server: Server | Sequence, **options: Any) -> Answer:
    """Submit a request that has to begin before a time of ``time.perf_counter``. Raises RefusedError."""
    left = None if until == math.inf else until - time.perf_counter()
    if left is not None and left <= 0:
        raise _late()
    try:
        return server.submit(inputs, wait=False, start_within_s=left, **options)
    except PlaceitError as error:
        raise refusal_of(error, closed=True) from error


def about_to_end() -> RefusedError:
    """Return the refusal of a server that accepts no more requests."""
    return RefusedError(Status.UNAVAILABLE, "This server is about to end and takes no more requests: use another one.")


def _late() -> RefusedError:
    return RefusedError(Status.LATE, "The time limit of this request is over.")
