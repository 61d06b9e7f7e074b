"""The Open Inference Protocol over gRPC."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, cast

import grpc
import grpc.aio
from google.protobuf import json_format

from placeit.serve.arriving import SMALL_BYTES, Room
from placeit.serve.client_sequences import Asked
from placeit.serve.refusal import RefusedError, check_token, invalid
from placeit.serve.repository import Repository, known
from placeit.serve.rpc_messages import SERVICE, Messages, Received, encoded, parsed, refusing
from placeit.serve.rpc_probes import probes
from placeit.serve.rpc_stream import Methods, Streams
from placeit.serve.served_model import ServedModel
from placeit.serve.service import APART_BYTES, Service
from placeit.serve.settings import check_unchanged, log_settings, trace_settings
from placeit.serve.shared_memory import Part, Regions
from placeit.serve.tensors import Array, datatype_of, of_bytes, of_contents, to_bytes
from placeit.serve.wanted import Wanted, priority_of, timeout_of, work
from placeit.serving.answers import Outputs

__all__ = ["make_server"]

_HEALTH: Final = ("ServerLive", "ServerReady")
_SLOW_S: Final = 0.1  # seconds after which a request reserves room for the largest one, as its size is not known
_CHECK_S: Final = 0.02  # seconds between two checks for such requests
_CHECKED: Final = 64  # calls of a check, so that others do not wait for thousands that send nothing
_MAX_SLOW: Final = 4  # requests of any size that may arrive slowly at once
_MAX_PENDING: Final = 1 << 14  # calls that gRPC has received and not begun: by default, it drops some at random from 1,000 on
_MAX_STREAMS: Final = 256  # most requests of a connection at a time


def make_server(
    service: Service,
    *,
    max_bytes: int,
    room: Room,
    token: bytes | None,
    timeout_s: float,
    connections: int | None = None,
    repository: Repository | None = None,
) -> grpc.aio.Server:
    """Return a gRPC server, without a port.

    Args:
        service: answers the requests.
        max_bytes: of a request.
        room: bytes of requests and their answers that are kept at once.
        token: token that clients have to send, as ``authorization: Bearer TOKEN``, except for the health methods; None for no
            token.
        timeout_s: seconds in which a request has to arrive.
        connections: most open connections; None for no limit.
        repository: loads and unloads models; None if they stay as they are.
    """
    messages = Messages()
    answers = _Answers(service, messages, repository)

    def check(context: Any) -> None:
        if token is not None:
            check_token(_authorization(context), token)

    arrivals = _Arrivals(room, min(max_bytes, room.size // _MAX_SLOW), timeout_s)

    def guarded(name: str, kind: Any) -> Callable[[Any, Any], Awaitable[bytes]]:
        async def method(_: Any, context: Any) -> bytes:
            found = b""
            with refusing(context):
                if name in _HEALTH:  # answered whatever arrives, and at once
                    sent = b""
                else:
                    check(context)
                    sent = await arrivals.read(context)
                with room.kept(len(sent)):
                    found = await answers.answer(name, await parsed(service, sent, kind), context)
                if len(found) > SMALL_BYTES:
                    _hold(room, len(found), timeout_s)
            return found

        return method

    methods = Methods(
        messages.ModelStreamInferResponse,
        lambda sent: parsed(service, sent, messages.ModelInferRequest),
        _named_sequence,
        answers.infer,
    )
    streams = Streams(service, methods, room, max_bytes=max_bytes, timeout_s=timeout_s)

    async def stream(_: Any, context: Any) -> None:
        with refusing(context):
            check(context)
            await streams.answer(context)

    # Streams of one request, so that the server decides when to read it, and for how long. No serializers: gRPC would send
    # their exceptions to clients.
    handlers = {
        name: grpc.stream_unary_rpc_method_handler(guarded(name, getattr(messages, method.input_type.name)))
        for name, method in messages.methods.items()
        if not method.client_streaming
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(stream)
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        ("grpc.max_connection_idle_ms", round(timeout_s * 1e3)),
        ("grpc.keepalive_time_ms", round(timeout_s * 1e3)),  # a client that reads nothing is left
        ("grpc.keepalive_timeout_ms", round(timeout_s * 1e3)),
        ("grpc.server_handshake_timeout_ms", round(timeout_s * 1e3)),
    ]
    if connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", connections))
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_generic_rpc_handlers(probes(service, SERVICE, messages.pool, check))
    return server


class _Arrivals:
    """Reads the request of each call. A request that is slow to arrive reserves room in memory.

    A call costs little memory before its request arrives, so thousands can be open at once.

    Args:
        room: bytes of requests that are kept at once.
        size: bytes of ``room`` for a request of unknown size.
        timeout_s: seconds in which a request has to arrive.
    """

    def __init__(self, room: Room, size: int, timeout_s: float) -> None:
        self._room, self._size, self._timeout_s = room, size, timeout_s
        self._pending: dict[asyncio.Task[Any], float] = {}  # tasks of calls without room, and when each began, oldest first
        self._slow: dict[asyncio.Task[Any], asyncio.Task[None]] = {}
        self._refused: dict[asyncio.Task[Any], RefusedError] = {}
        self._scheduled = False

    async def read(self, context: Any) -> bytes:
        """Return the request of a call. Raises RefusedError if the call has none, it is late, or there is no room for it."""
        loop, task = asyncio.get_running_loop(), cast("asyncio.Task[Any]", asyncio.current_task())
        self._pending[task] = loop.time()
        if not self._scheduled:
            self._scheduled = True
            loop.call_later(_CHECK_S, self._check, loop.time() + _CHECK_S)
        try:
            sent = await context.read()
        except asyncio.CancelledError:
            if task in self._refused:
                task.uncancel()
                raise self._refused[task] from None
            raise
        finally:
            self._pending.pop(task, None)
            self._refused.pop(task, None)
            if slow := self._slow.pop(task, None):
                slow.cancel()
        if sent is grpc.aio.EOF:
            raise invalid("This call has no request.")
        found: bytes = sent
        return found

    def _check(self, due: float) -> None:
        """Reserve room for calls whose requests are slow, unless the event loop itself was late."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now < due + _SLOW_S:
            for task, since in [*itertools.islice(self._pending.items(), _CHECKED)]:
                if now < since + _SLOW_S:
                    break
                del self._pending[task]
                if self._room.is_full:
                    self._end(task, self._room.full())
                else:
                    self._slow[task] = loop.create_task(self._wait(task))
        self._scheduled = bool(self._pending)
        if self._scheduled:
            loop.call_later(_CHECK_S, self._check, now + _CHECK_S)

    async def _wait(self, task: asyncio.Task[Any]) -> None:
        """Hold room for a call until its request has arrived; end the call if there is no room."""
        try:
            async with self._room.arrival(self._timeout_s) as one:
                await self._room.reserve(one, self._size)
                await asyncio.Future[None]()
        except RefusedError as error:
            if task in self._slow:
                self._end(task, error)

    def _end(self, task: asyncio.Task[Any], error: RefusedError) -> None:
        self._refused[task] = error
        task.cancel()


def _hold(room: Room, size: int, timeout_s: float) -> None:
    """Take room for the answer of the current call until gRPC has sent it; end the call if its client does not receive it."""
    task = cast("asyncio.Task[Any]", asyncio.current_task())
    sending = room.begin()
    room.answered(sending, size, task.cancel)
    timer = asyncio.get_running_loop().call_later(timeout_s, task.cancel)

    def sent(_: object) -> None:
        timer.cancel()
        room.end(sending)

    task.add_done_callback(sent)


def _authorization(context: Any) -> bytes:
    given = dict(context.invocation_metadata() or ()).get("authorization", b"")
    return given if isinstance(given, bytes) else given.encode()


def _plain_methods(service: Service, repository: Repository | None) -> dict[str, Callable[[Any], Any]]:
    """Return the methods without tensors by name: each takes a request, and returns the fields of its response."""
    regions = service.regions

    def index(request: Any) -> dict[str, Any]:
        return {"models": [one for one in service.index() if one["state"] == "READY" or not request.ready]}

    def trace(request: Any) -> dict[str, Any]:
        if request.model_name:
            service.model(request.model_name)
        check_unchanged(request.settings)
        found = trace_settings(traced=service.traced)
        return {"settings": {name: {"value": [said] if isinstance(said, str) else said} for name, said in found.items()}}

    def log(request: Any) -> dict[str, Any]:
        check_unchanged(request.settings)
        kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        return {"settings": {name: {kinds[type(said)]: said} for name, said in log_settings().items()}}

    return {
        "ServerLive": lambda _: {"live": True},
        "ServerReady": lambda _: {"ready": service.ready},
        "ServerMetadata": lambda _: service.metadata(),
        "ModelReady": lambda of: {"ready": service.model(of.name, of.version).ready and not service.draining},
        "ModelMetadata": lambda of: service.model(of.name, of.version).metadata(),
        "ModelConfig": lambda of: {"config": service.model(of.name, of.version).config()},
        "ModelStatistics": lambda of: {"model_stats": service.statistics(of.name, of.version)},
        "RepositoryIndex": index,
        "RepositoryModelLoad": lambda of: known(repository).load(service, of.model_name, _plain(of.parameters)),
        "RepositoryModelUnload": lambda of: known(repository).unload(service, of.model_name),
        "SystemSharedMemoryStatus": lambda of: {"regions": {one["name"]: one for one in regions.status(of.name)}},
        "SystemSharedMemoryRegister": lambda of: regions.register(of.name, of.key, of.offset, of.byte_size),
        "SystemSharedMemoryUnregister": lambda of: regions.unregister(of.name),
        "TraceSetting": trace,
        "LogSettings": log,
    }


class _Answers:
    """Answers requests by the names of their methods.

    Args:
        service: answers the requests.
        messages: classes of the protocol's messages.
        repository: loads and unloads models; None if they stay as they are.
    """

    def __init__(self, service: Service, messages: Messages, repository: Repository | None) -> None:
        self._service, self._messages, self._methods = service, messages, _plain_methods(service, repository)

    async def answer(self, name: str, sent: Received, context: Any) -> bytes:
        """Return the bytes of the response of a method. Raises RefusedError."""
        if name == "ModelInfer":
            return await encoded(self._service, *await self.infer(sent, context))
        found = self._methods[name](sent.message)
        if inspect.isawaitable(found):
            found = await found
        fields = found if isinstance(found, dict) else {}
        return bytes(json_format.ParseDict(fields, getattr(self._messages, f"{name}Response")()).SerializeToString())

    async def infer(
        self, sent: Received, context: Any, before: asyncio.Task[None] | None = None
    ) -> tuple[Any, list[memoryview]]:
        """Run a model.

        Args:
            sent: the request.
            context: of the call that it is in.
            before: task that has to end before the request runs; None to run it at once.

        Returns:
            The answer, without its tensors, and their bytes.

        Raises:
            RefusedError: the request is refused.
        """
        request = sent.message
        with self._service.accepted(request.model_name, request.model_version) as call:
            if before is not None:
                await asyncio.wait([before])
            call.received = perf_counter()
            if self._service.traced:
                call.headers = {name: said for name, said in context.invocation_metadata() or () if isinstance(said, str)}
            borrowed = any("shared_memory_region" in tensor.parameters for tensor in request.inputs)
            size = max(sent.typed, APART_BYTES if borrowed else 0)
            copied = sum(map(len, sent.raw))
            inputs = await self._service.by_size(size, _inputs, call.model, sent, self._service.regions, copied=copied)
            parameters = _plain(request.parameters)
            times = [context.time_remaining(), timeout_of(parameters)]
            wanted = [Wanted.of(one.name, _plain(one.parameters)) for one in request.outputs]
            wanted = wanted or [Wanted(name) for name in call.model.outputs]
            call.model.named_once("output", [one.name for one in wanted])
            left = min((one for one in times if one is not None), default=None)
            outputs = await self._service.run(call, inputs, left, sequence=_sequence(request), priority=priority_of(parameters))
            answer = self._messages.ModelInferResponse(
                model_name=call.model.name, model_version=call.model.version, id=request.id
            )
            write = partial(self._written, answer, wanted, outputs)
            return answer, await self._service.by_size(function=write, **work(wanted, outputs))

    def _written(self, answer: Any, wanted: Sequence[Wanted], outputs: Outputs) -> list[memoryview]:
        """Describe outputs in an answer, and return their bytes, unless they are in shared memory. Raises RefusedError."""
        raw: list[memoryview] = []
        for one in wanted:
            value = one.of_value(outputs[one.name])
            tensor = answer.outputs.add(name=one.name, datatype=datatype_of(value), shape=value.shape)
            stored = one.stored(value, self._service.regions)
            for name, said in (stored or {}).items():
                kind = "string_param" if isinstance(said, str) else "int64_param"
                setattr(tensor.parameters[name], kind, said)
            raw.append(memoryview(b"") if stored else to_bytes(value))
        return raw


def _inputs(model: ServedModel, received: Received, regions: Regions) -> dict[str, Array]:
    """Read the tensors of a request. Raises RefusedError."""
    request, raw = received.message, received.raw
    model.named_once("input", [tensor.name for tensor in request.inputs])
    parts = [Part.of(_plain(tensor.parameters)) for tensor in request.inputs]
    sent = parts.count(None)
    if raw and len(raw) != sent:
        raise invalid(f"There are {len(raw)} raw contents for {sent} inputs: each input needs one.")
    inputs: dict[str, Array] = {}
    contents = iter(raw)
    for tensor, part in zip(request.inputs, parts, strict=True):
        spec = model.spec(tensor.name, tensor.datatype, tensor.shape)
        if (raw or part is not None) and tensor.HasField("contents"):
            raise invalid(f"The input '{spec.name}' has both typed and raw contents: send one of them.")
        if part is not None:
            inputs[spec.name] = regions.tensor(spec, part)
        else:
            inputs[spec.name] = of_bytes(next(contents), spec) if raw else of_contents(tensor.contents, spec)
    return inputs


def _plain(parameters: Any) -> dict[str, object]:
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}
    return {name: getattr(value, kind) if kind else None for name, (value, kind) in chosen.items()}


def _sequence(request: Any) -> Asked | None:
    """Return the sequence parameters of a request; None if it belongs to no sequence. Raises RefusedError."""
    return Asked.of(_plain(request.parameters), request.id)


def _named_sequence(request: Any) -> tuple[str, int | str] | None:
    """Return the model and the name of a request's sequence; None without a valid sequence."""
    try:
        asked = _sequence(request)
    except RefusedError:
        return None
    return None if asked is None else (request.model_name, asked.name)
