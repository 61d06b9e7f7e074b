"""A model that clients can run, and their requests."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from typing import Any

from placeit.backends.base import TensorSpec
from placeit.core.errors import UsageError
from placeit.core.sizes import fits
from placeit.serve.client_sequences import IDLE_S, Sequences
from placeit.serve.rates import RateWatch
from placeit.serve.refusal import invalid
from placeit.serve.tensors import DATATYPES, ranges, sent_as, taken
from placeit.serving.answers import Answer
from placeit.serving.server import Server
from placeit.serving.stats import ServerStats
from placeit.text.generating import TextModel

__all__ = ["Call", "Counts", "ServedModel", "is_name", "listed"]

_BESIDE_VALUES = 1 << 20  # bytes of names, shapes and parameters in a request
_OF_VALUE = 16  # bytes of a value over gRPC, of which a varint may take 10
_FIXED = re.compile(r"bool|u?int\d+|b?float\d+")  # types whose values have a fixed size
_PAGES = ("stats",)  # of /v2/models/


def is_name(text: str) -> bool:
    """Return whether a text can name a model: it needs no escapes in a URL path, and is more than dots."""
    return re.fullmatch(r"\.*[\w-][\w.-]*", text, re.ASCII) is not None


@dataclass
class _Duration:
    """How often something happened, and the seconds that it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.count += 1
        self.seconds += max(0.0, seconds)

    def to_dict(self) -> dict[str, int]:
        """Return it in the format of Triton."""
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


class Counts:
    """Counts of the requests of a model, which continue when it is reloaded.

    Attributes:
        durations: how often requests had an outcome or a stage, and the time that this took, by Triton's names.
        last: when the last request has succeeded, in milliseconds since 1970.
    """

    def __init__(self) -> None:
        stages = "success", "fail", "queue", "compute_input", "compute_infer", "compute_output"
        self.durations = {what: _Duration() for what in stages}
        self.last = 0
        # of closed servers, and the open ones, as one value for threads
        self._servers: tuple[ServerStats | None, tuple[Server, ...]] = (None, ())

    def opened(self, server: Server) -> None:
        """Include the requests of a server."""
        ended, servers = self._servers
        self._servers = ended, (*servers, server)

    def closed(self, server: Server) -> None:
        """Release a server, and keep its counts."""
        ended, servers = self._servers
        last = replace(server.stats(), waiting=0, in_flight=0, sequences=0, state_bytes=0)
        self._servers = last if ended is None else last.after(ended), tuple(one for one in servers if one is not server)

    def stats(self) -> ServerStats:
        """Return the numbers of all servers that have run the model."""
        ended, servers = self._servers
        every = [*([] if ended is None else [ended]), *(server.stats() for server in servers)]
        return functools.reduce(lambda before, newer: newer.after(before), every)


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
        any_version: whether the client names no version of the model.
    """

    model: ServedModel
    headers: Mapping[str, str] | None = None
    begun: float = field(default_factory=time.perf_counter)
    received: float = math.nan
    submitted: float = math.nan
    answer: Answer | None = None
    answered: float = math.nan
    any_version: bool = True

    def stages(self) -> list[tuple[str, float, float]]:
        """Return the name, begin and end of each stage; NaN for stages that it has not reached."""
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
        text: generates texts with it, if it is a decoder; None if it does not.
        recompute: whether to keep the inputs of sequences, to recompute states that are lost.

    Attributes:
        versions: all versions that are served under its name.
        accepted: number of requests that were accepted and have not ended.
        replaced: whether its file was replaced after it was opened.
        rates: watches the rate of its requests; None if it was not placed for one.
        heads: parsed JSON of requests, by its bytes, which are often equal if tensors follow as bytes.
        counts: numbers of its requests.

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
        text: TextModel | None = None,
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
        self.versions, self.accepted, self.replaced, self.text = [version], 0, False, text
        self.rates: RateWatch | None = None
        self.heads: dict[bytes, Any] = {}
        self.inputs = {spec.name: spec for spec in inputs}
        self.outputs = {spec.name: spec for spec in outputs}
        self.sequences = Sequences(server, idle_s, recompute=recompute)
        self.counts = Counts()
        self.counts.opened(server)

    @property
    def ready(self) -> bool:
        """True if its server takes requests and has devices that run them."""
        return self.server.able

    @property
    def state(self) -> tuple[str, str]:
        """Its state and the reason for it, in the format of Triton's repository index."""
        if not self.ready:
            return "UNAVAILABLE", "its server is closed, or no device is left"
        return "READY", "its file was replaced after it was loaded" if self.replaced else ""

    @property
    def tensors(self) -> list[tuple[object, ...]]:
        """Names, types and sizes of its inputs and outputs."""
        sides = enumerate((self.inputs, self.outputs))
        return [(side, spec.name, spec.dtype, spec.limits or spec.shape) for side, specs in sides for spec in specs.values()]

    @property
    def max_values(self) -> int:
        """Number of values of all inputs together, at their largest sizes."""
        return sum(math.prod(high for _, high in ranges(spec)) for spec in self.inputs.values())

    @property
    def max_bytes(self) -> float:
        """Bytes of the largest request over gRPC, with typed values; infinite if values have no fixed size."""
        if not all(_FIXED.fullmatch(spec.dtype) for spec in self.inputs.values()):
            return math.inf
        return _BESIDE_VALUES + _OF_VALUE * self.max_values

    def spec(self, name: str, datatype: str, shape: Listed[int]) -> TensorSpec:
        """Return the spec of an input as it is sent. Raises RefusedError if its name, type or shape does not fit the model."""
        spec = self.inputs.get(name)
        if spec is None:
            raise invalid(f"The model '{self.name}' has no input '{name}'; its inputs are {listed(self.inputs)}.")
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
                raise invalid(f"The model '{self.name}' has no {what} '{name}'; its {what}s are {listed(known)}.")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid(f"The {what} '{twice}' is there {names.count(twice)} times.")
        missing = [name for name in known if name not in names]
        if missing and what == "input":
            raise invalid(f"The input '{missing[0]}' is missing; the inputs are {listed(known)}.")

    def count_on(self, counts: Counts) -> None:
        """Go on with the numbers of earlier requests for the model."""
        if counts is not self.counts:
            self.counts = counts
            counts.opened(self.server)

    def ended(self, call: Call, *, well: bool) -> None:
        """Count a request that has ended, and its times."""
        now, spent = time.perf_counter(), self.counts.durations
        if not well:
            spent["fail"].add(now - call.begun)
            return
        self.counts.last = time.time_ns() // 1_000_000
        spent["success"].add(now - call.begun)
        if call.answer is None:  # it took several runs
            return
        spent["compute_input"].add(call.submitted - call.received)
        spent["queue"].add(call.answer.begun - call.submitted)
        spent["compute_infer"].add(call.answer.ended - call.answer.begun)
        spent["compute_output"].add(now - call.answered)

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata, as the protocol has them."""
        return {
            "name": self.name,
            "versions": self.versions,
            "platform": "placeit",
            "inputs": _described(self.inputs, "datatype", "shape"),
            "outputs": _described(self.outputs, "datatype", "shape"),
        }

    def config(self) -> dict[str, Any]:
        """Return the model's configuration, in Triton's format."""
        return {
            "name": self.name,
            "platform": "placeit",
            "backend": "placeit",
            "max_batch_size": 0,
            "input": _described(self.inputs, "data_type", "dims", "TYPE_"),
            "output": _described(self.outputs, "data_type", "dims", "TYPE_"),
        }

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the model's requests, in Triton's format."""
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": self.counts.last,
            "inference_count": self.counts.durations["success"].count,
            "execution_count": self.counts.stats().runs,
            "inference_stats": {what: spent.to_dict() for what, spent in self.counts.durations.items()},
        }


def listed(known: Iterable[str]) -> str:
    """Return names for a message, in quotes."""
    return ", ".join(f"'{name}'" for name in known)


def _described(specs: Mapping[str, TensorSpec], kind: str, sizes: str, prefix: str = "") -> list[dict[str, Any]]:
    """Return the names, types and sizes of tensors, by the names of these fields; sizes are -1 if they are open."""
    return [
        {"name": name, kind: prefix + DATATYPES[spec.dtype], sizes: [low if low == high else -1 for low, high in ranges(spec)]}
        for name, spec in specs.items()
    ]
