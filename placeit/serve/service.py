"""The models of a network server, and the handling of requests, for every protocol."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from placeit.backends.base import Arrays, TensorSpec
from placeit.core.errors import PlaceitError, UsageError
from placeit.core.sizes import fits
from placeit.core.version import __version__
from placeit.serve.client_sequences import IDLE_S, Asked, Sequences
from placeit.serve.refusal import RefusedError, Status, invalid, refusal_of
from placeit.serve.shared_memory import Regions
from placeit.serve.tensors import DATATYPES, sent_as, taken
from placeit.serve.tracing import Traces
from placeit.serving.answers import Answer, Outputs
from placeit.serving.sequence import Sequence
from placeit.serving.server import Server

__all__ = ["Call", "ServedModel", "Service", "is_name"]

_APART = 2  # functions that run apart at a time
_BESIDE_VALUES = 1 << 20  # bytes of a request besides the values of its inputs: names, shapes, parameters
_OF_VALUE = 16  # bytes of a value over gRPC, of which a varint may take 10
_FIXED = re.compile(r"bool|u?int\d+|b?float\d+")  # types whose values have a fixed size
_PAGES = ("stats",)  # of /v2/models/
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


def is_name(text: str) -> bool:
    """Return whether a text can name a model: it has no character that a URL path would have to escape."""
    return re.fullmatch(r"[\w.-]+", text, re.ASCII) is not None


@dataclass
class _Duration:
    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += max(0.0, seconds)

    def to_dict(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


@dataclass
class Call:
    """A request of a client, and its times, in seconds of ``time.perf_counter``.

    Attributes:
        model: the model to run.
        begun: when its head had arrived.
        received: when all of it had arrived.
        submitted: when its tensors had been read, and it was submitted to the model's server.
        answer: its future; None before it is submitted.
        answered: when its outputs were there.
        headers: its headers; None if nothing reads them.
    """

    model: ServedModel
    headers: Mapping[str, str] | None = None
    begun: float = field(default_factory=time.perf_counter)
    received: float = math.nan
    submitted: float = math.nan
    answer: Answer | None = None
    answered: float = math.nan

    def stages(self) -> list[tuple[str, float, float]]:
        """Return the names, begins and ends of its stages until now; NaN for what it has not reached."""
        begun, ended = (math.nan, math.nan) if self.answer is None else (self.answer.begun, self.answer.ended)
        return [
            ("receive", self.begun, self.received),
            ("read", self.received, self.submitted),
            ("queue", self.submitted, begun),
            ("run", begun, ended),
            ("answer", self.answered, time.perf_counter()),
        ]


class ServedModel:
    """A model that clients can run.

    Args:
        name: name by which clients call it.
        server: runs it.
        inputs: specs of its inputs.
        outputs: specs of its outputs.
        version: version of the model.
        idle_s: seconds without a request after which a sequence of a client is closed.
        recompute: whether to keep the inputs of sequences, and to compute states anew that were lost.

    Raises:
        UsageError: the name has characters besides letters, digits, ``-``, ``_`` and ``.``, or the protocol has no type for a
            tensor.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        inputs: Listed[TensorSpec],
        outputs: Listed[TensorSpec],
        version: str = "1",
        *,
        idle_s: float = IDLE_S,
        recompute: bool = False,
    ) -> None:
        if not is_name(name):
            raise UsageError(f"A model cannot be served as '{name}': take letters, digits, '-', '_' and '.', as in NAME=PATH.")
        if name in _PAGES:
            raise UsageError(f"A model cannot be served as '{name}', which names a page of the server: give it another name.")
        for spec in (*inputs, *outputs):
            if spec.dtype not in DATATYPES:
                raise UsageError(
                    f"The model '{name}' cannot be served: '{spec.name}' is {spec.dtype}; clients can send and receive "
                    f"{', '.join(DATATYPES)}."
                )
        self.name, self.server, self.version = name, server, version
        self.inputs = {spec.name: spec for spec in inputs}
        self.outputs = {spec.name: spec for spec in outputs}
        self.sequences = Sequences(server, idle_s, recompute=recompute)
        self._durations = {what: _Duration() for what in _DURATIONS}
        self._last = 0  # milliseconds since 1970

    @property
    def ready(self) -> bool:
        """True if its server takes requests and has devices that run them."""
        return self.server.able

    @property
    def most_values(self) -> int:
        """Number of values of all inputs together, at their largest sizes."""
        return sum(
            math.prod(spec.shape if spec.limits is None else (high for _, high in spec.limits)) for spec in self.inputs.values()
        )

    @property
    def most_bytes(self) -> float:
        """Bytes of the largest request over gRPC, with typed values; infinite if an input has values of any length."""
        if not all(_FIXED.fullmatch(spec.dtype) for spec in self.inputs.values()):
            return math.inf
        return _BESIDE_VALUES + _OF_VALUE * self.most_values

    def spec(self, name: str, datatype: str, shape: Listed[int]) -> TensorSpec:
        """Return the spec of an input as it is sent. Raises RefusedError if its name, type or shape does not fit the model."""
        spec = self.inputs.get(name)
        if spec is None:
            raise invalid(f"The model '{self.name}' has no input '{name}'; its inputs are {_names(self.inputs)}.")
        dtype = sent_as(spec, datatype)
        if not fits(shape, spec.shape, spec.limits):
            raise invalid(f"The input '{name}' is sent with the shape {list(shape)}; the model takes {taken(spec)}.")
        if spec.limits is None and dtype == spec.dtype:
            return spec
        return replace(spec, dtype=dtype, shape=tuple(shape), limits=None)

    def named_once(self, what: str, names: Listed[str]) -> None:
        """Raise RefusedError if an input or output is unknown or named twice, or an input is missing."""
        known = self.inputs if what == "input" else self.outputs
        for name in names:
            if name not in known:
                raise invalid(f"The model '{self.name}' has no {what} '{name}'; its {what}s are {_names(known)}.")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid(f"The {what} '{twice}' is there {names.count(twice)} times.")
        missing = [name for name in known if name not in names]
        if missing and what == "input":
            raise invalid(f"The input '{missing[0]}' is missing; the inputs are {_names(known)}.")

    def ended(self, call: Call, *, well: bool) -> None:
        """Count a request that has ended, and its times."""
        now, spent = time.perf_counter(), self._durations
        if not well or call.answer is None:
            spent["fail"].add(now - call.begun)
            return
        self._last = time.time_ns() // 1_000_000
        spent["success"].add(now - call.begun)
        spent["compute_input"].add(call.submitted - call.received)
        spent["queue"].add(call.answer.begun - call.submitted)
        spent["compute_infer"].add(call.answer.ended - call.answer.begun)
        spent["compute_output"].add(now - call.answered)

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata, as the protocol has them."""
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "placeit",
            "inputs": [_described(spec) for spec in self.inputs.values()],
            "outputs": [_described(spec) for spec in self.outputs.values()],
        }

    def config(self) -> dict[str, Any]:
        """Return the model's configuration, in Triton's format."""
        return {
            "name": self.name,
            "platform": "placeit",
            "backend": "placeit",
            "max_batch_size": 0,
            "input": [_configured(spec) for spec in self.inputs.values()],
            "output": [_configured(spec) for spec in self.outputs.values()],
        }

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the model's requests, in Triton's format."""
        succeeded, batches = self._durations["success"].count, self.server.stats().batches
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": self._last,
            "inference_count": succeeded,
            "execution_count": sum(batches.values()) if batches else succeeded,
            "inference_stats": {what: spent.to_dict() for what, spent in self._durations.items()},
        }


def _names(known: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in known)


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": _dims(spec)}


def _configured(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{DATATYPES[spec.dtype]}", "dims": _dims(spec)}


def _dims(spec: TensorSpec) -> list[int]:
    """Return a tensor's sizes, -1 for open ones."""
    return [low if low == high else -1 for low, high in spec.limits or zip(spec.shape, spec.shape, strict=True)]


class Service:
    """All models of a network server. Its methods are called on the thread of the event loop.

    Args:
        models: the models to serve, with different names.
        shared_memory: whether clients may pass tensors in shared memory.
        traces: writes the spans of requests; None for no spans.

    Attributes:
        regions: shared memory that clients have registered.
        draining: whether no more requests are accepted.
    """

    def __init__(self, models: Iterable[ServedModel], *, shared_memory: bool = False, traces: Traces | None = None) -> None:
        self.regions = Regions(allowed=shared_memory)
        self._traces = traces
        self.models: dict[str, ServedModel] = {}
        for model in models:
            if model.name in self.models:
                raise UsageError(f"Two models are to be served as '{model.name}': give one another name, as in NAME=PATH.")
            self.models[model.name] = model
        if not self.models:
            raise UsageError("There is no model to serve.")
        self.draining = False
        self._apart, self._brief = asyncio.Semaphore(_APART), asyncio.Semaphore(_APART)
        self._accepted = 0
        self._idle = asyncio.Event()

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

    @property
    def traced(self) -> bool:
        """True if requests have spans, which need their headers."""
        return self._traces is not None

    @property
    def ready(self) -> bool:
        """True if requests are accepted, and every model has devices that run it."""
        return not self.draining and all(model.ready for model in self.models.values())

    @property
    def most_bytes(self) -> float:
        """Bytes of the largest request over gRPC that a model takes."""
        return max(model.most_bytes for model in self.models.values())

    def metadata(self) -> dict[str, Any]:
        """Return the server's metadata, as the protocol has them."""
        return {"name": "placeit", "version": __version__, "extensions": list(_EXTENSIONS)}

    def index(self) -> list[dict[str, Any]]:
        """Return the models and their states, in the format of Triton's repository index."""
        return [
            {
                "name": model.name,
                "version": model.version,
                "state": "READY" if model.ready else "UNAVAILABLE",
                "reason": "" if model.ready else "its server is closed, or no device is left",
            }
            for model in self.models.values()
        ]

    def model(self, name: str, version: str = "") -> ServedModel:
        """Return a model by its name and version, or in any version if that is empty. Raises RefusedError."""
        found = self.models.get(name)
        if found is None:
            raise RefusedError(Status.UNKNOWN, f"There is no model '{name}' here; there are {_names(self.models)}.")
        if version not in ("", found.version):
            raise RefusedError(Status.UNKNOWN, f"The model '{name}' has no version '{version}'; it has '{found.version}'.")
        return found

    @contextlib.contextmanager
    def accepted(self, name: str, version: str = "") -> Iterator[Call]:
        """Accept a request, which the server then finishes even if it is told to end, and count its outcome.

        Raises:
            RefusedError: there is no such model, or the server accepts no more requests.
        """
        call = Call(self.model(name, version))
        if self.draining:
            raise RefusedError(Status.UNAVAILABLE, "This server is about to end and takes no more requests: ask another one.")
        self._accepted += 1
        well = False
        try:
            yield call
            well = True
        finally:
            call.model.ended(call, well=well)
            if self._traces is not None:
                model, headers = call.model, call.headers or {}
                self._traces.write(model.name, model.version, headers, call.stages(), well=well)
            self._accepted -= 1
            self._look()

    async def run(
        self,
        call: Call,
        inputs: Arrays,
        timeout_s: float | None = None,
        gone: Callable[[], Awaitable[object]] | None = None,
        sequence: Asked | None = None,
    ) -> Outputs:
        """Run the model of a request.

        Args:
            call: the request.
            inputs: by name.
            timeout_s: seconds from the begin of the request until the outputs have to be there; None for as long as it takes.
            gone: waits until the client has disconnected; None if this call is cancelled then.
            sequence: its sequence; None if it belongs to no sequence.

        Raises:
            RefusedError: there are no outputs, or not in time. A request that has not begun by then does not run.
        """
        while True:
            call.submitted = time.perf_counter()
            left = None if timeout_s is None else call.begun + timeout_s - call.submitted
            if left is not None and left <= 0:
                raise _late()
            submit = partial(_submit, inputs, left)
            if sequence is None:
                call.answer = submit(call.model.server)
            else:
                call.answer = await call.model.sequences.submit(sequence, inputs, submit)
            outputs = await self._outputs(call, call.answer, left, gone)
            if outputs is not None:
                return outputs

    async def _outputs(
        self, call: Call, future: Answer, left: float | None, gone: Callable[[], Awaitable[object]] | None
    ) -> Outputs | None:
        """Wait for the outputs of a request; return None if another client that waited for it has cancelled it."""
        answer: asyncio.Future[Outputs] = asyncio.wrap_future(future)
        leaving = None if gone is None else asyncio.ensure_future(gone())
        waited: list[asyncio.Future[Any]] = [answer] if leaving is None else [answer, leaving]
        try:
            await asyncio.wait(waited, timeout=left, return_when="FIRST_COMPLETED")
        finally:
            has_left = leaving is not None and leaving.done()
            was_cancelled = answer.cancelled()
            answer.cancel()  # takes the request out of the queue if it waits there
            if leaving is not None:
                leaving.cancel()
        if was_cancelled and not has_left:
            return None
        if answer.cancelled():
            raise RefusedError(Status.GONE, "The client has gone.") if has_left else _late()
        try:
            outputs = answer.result()
        except PlaceitError as error:
            raise refusal_of(error) from error
        call.answered = time.perf_counter()
        return outputs

    async def drain(self) -> None:
        """Accept no more requests, and wait until the accepted ones have ended."""
        self.draining = True
        self._look()
        await self._idle.wait()

    def _look(self) -> None:
        if self.draining and not self._accepted:
            self._idle.set()


def _submit(inputs: Arrays, left: float | None, server: Server | Sequence) -> Answer:
    """Submit a request that has to begin within some seconds. Raises RefusedError."""
    try:
        return server.submit(inputs, wait=False, start_within_s=left)
    except PlaceitError as error:
        raise refusal_of(error, closed=True) from error


def _late() -> RefusedError:
    return RefusedError(Status.LATE, "The time in which this request had to be answered is over.")
