"""The Open Inference Protocol over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from time import perf_counter
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from placeit.core.protobuf import LENGTH_DELIMITED, message_fields
from placeit.serve.arriving import Room
from placeit.serve.client_sequences import Asked
from placeit.serve.refusal import RefusedError, Status, check_token, invalid, told
from placeit.serve.repository import Repository, known
from placeit.serve.rpc_probes import probes
from placeit.serve.rpc_stream import Methods, Streams
from placeit.serve.served_model import ServedModel
from placeit.serve.service import APART_BYTES, Service
from placeit.serve.settings import check_unchanged, log_settings, trace_settings
from placeit.serve.shared_memory import Part, Regions
from placeit.serve.tensors import Array, datatype_of, of_bytes, of_contents, to_bytes
from placeit.serve.tracing import headers_of
from placeit.serve.wanted import Wanted, check_priority
from placeit.serving.answers import Outputs

__all__ = ["Messages", "make_server"]

_SERVICE: Final = "inference.GRPCInferenceService"
_HEALTH: Final = ("ServerLive", "ServerReady")
_ARRIVING: Final = 1024  # most requests that are arriving
_SLOWLY: Final = 16  # most requests that are arriving for longer than _SLOW_S: each may keep all bytes of a request
_SLOW_S: Final = 0.25
_STREAMS: Final = 256  # most requests of a connection at a time
_FIELDS: Final = 4096  # most fields of a request, as each of them takes many times its bytes
_TYPED_BYTES: Final = (
    16 << 20
)  # most bytes of a request besides raw contents, as values that are read take many times their bytes


class Messages:
    """The protocol's message classes, by name, in a separate pool, as a process may also use a client of the protocol."""

    def __init__(self) -> None:
        found = descriptor_pb2.FileDescriptorSet.FromString(files("placeit.serve").joinpath("open_inference.pb").read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in found.file:
            pool.Add(file)
        self.methods = {method.name: method for method in pool.FindServiceByName(_SERVICE).methods}
        self.pool = pool

    def __getattr__(self, name: str) -> Any:
        """Return the class of a message."""
        found = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"inference.{name}"))
        setattr(self, name, found)
        return found


def make_server(
    service: Service,
    *,
    most_bytes: int,
    token: bytes | None,
    patience_s: float,
    connections: int | None = None,
    repository: Repository | None = None,
) -> grpc.aio.Server:
    """Return a gRPC server, without a port.

    Args:
        service: answers the requests.
        most_bytes: of a request.
        token: token that clients have to send, as ``authorization: Bearer TOKEN``, except for the health methods; None for no
            token.
        patience_s: seconds in which a request has to arrive.
        connections: most open connections; None for no limit.
        repository: loads and unloads models; None if they stay as they are.
    """
    messages = Messages()
    answers = _Answers(service, messages, repository)
    arriving, slow = Room(_ARRIVING, "requests are arriving"), Room(_SLOWLY, "requests are arriving slowly")

    def check(context: Any) -> None:
        if token is not None:
            check_token(_authorization(context), token)

    async def received(context: Any) -> bytes:
        async with arriving.arrival(patience_s) as one:
            arriving.take(one, 1)
            coming = asyncio.ensure_future(context.read())
            try:
                if not (await asyncio.wait([coming], timeout=_SLOW_S))[0]:
                    async with slow.arrival() as slowly:
                        slow.take(slowly, 1)
                        await asyncio.wait([coming])
                sent = await coming
            finally:
                coming.cancel()
        if sent is grpc.aio.EOF:
            raise invalid("This call has no request.")
        found: bytes = sent
        return found

    def guarded(name: str, kind: Any) -> Callable[[Any, Any], Awaitable[bytes]]:
        answer = getattr(answers, name)

        async def method(_: Any, context: Any) -> bytes:
            try:
                if name in _HEALTH:  # answered whatever arrives, and at once
                    sent = b""
                else:
                    check(context)
                    sent = await received(context)
                found: bytes = (await answer(_parsed(sent, kind), context)).SerializeToString()
                return found
            except Exception as error:  # noqa: BLE001 (clients are told only that the request failed)
                _refuse(context, error)
                return b""

        return method

    methods = Methods(
        messages.ModelStreamInferResponse,
        lambda sent: _parsed(sent, messages.ModelInferRequest),
        _named_sequence,
        answers.infer,
    )
    streams = Streams(service, methods, most_bytes=most_bytes, patience_s=patience_s)

    async def stream(_: Any, context: Any) -> None:
        try:
            check(context)
            await streams.answer(context)
        except Exception as error:  # noqa: BLE001 (clients are told only that the stream failed)
            _refuse(context, error)

    # As if clients streamed their one request, which is the same to them: the server then decides when to read it, and for how
    # long. And without serializers that gRPC calls: it would send their exceptions to clients.
    handlers = {
        name: grpc.stream_unary_rpc_method_handler(guarded(name, getattr(messages, method.input_type.name)))
        for name, method in messages.methods.items()
        if not method.client_streaming
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(stream)
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.max_connection_idle_ms", round(patience_s * 1e3)),
        ("grpc.server_handshake_timeout_ms", round(patience_s * 1e3)),
    ]
    if connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", connections))
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_generic_rpc_handlers(probes(service, _SERVICE, messages.pool, check))
    return server


def _refuse(context: Any, error: Exception) -> None:
    """End a call with the status for an error."""
    refused = told(error)
    context.set_code(getattr(grpc.StatusCode, refused.status.grpc))  # not abort(): its exception would keep the server alive
    context.set_details(str(refused))


def _parsed(sent: bytes, kind: Any) -> Any:
    """Return a message of a class. Raises RefusedError if it is no such message, or would take many times its bytes."""
    try:
        if len(sent) >= APART_BYTES:
            _check_bounds(sent, kind.DESCRIPTOR)
        return kind.FromString(sent)
    except DecodeError:
        raise invalid(f"This is no {kind.DESCRIPTOR.name} in protobuf.") from None


def _check_bounds(sent: bytes, kind: Any) -> None:
    """Refuse a message that would take many times its bytes, before it is parsed.

    Args:
        sent: the message.
        kind: its descriptor.

    Raises:
        RefusedError: it has too many fields, or too many bytes that are no raw contents.
    """
    count, typed = 0, len(sent)
    todo = [(0, len(sent), kind)]
    while todo:
        at, end, kind = todo.pop()
        fields = kind.fields_by_number
        for number, wire, start, stop in message_fields(sent, at, end):
            count += 1
            if count > _FIELDS:
                raise invalid(f"This request has more than {_FIELDS} fields: send tensors as raw contents.")
            field = fields.get(number)
            if field is None or wire != LENGTH_DELIMITED:
                continue
            if field.message_type is not None:
                todo.append((start, stop, field.message_type))
            elif field.name == "raw_input_contents":
                typed -= stop - start
    if typed > _TYPED_BYTES:
        raise RefusedError(Status.TOO_LARGE, f"At most {_TYPED_BYTES} bytes of a request may be other than raw contents.")


def _authorization(context: Any) -> bytes:
    """Return the ``authorization`` metadata of a request; empty without any."""
    given = dict(context.invocation_metadata() or ()).get("authorization", b"")
    return given if isinstance(given, bytes) else given.encode()


class _Answers:
    """The methods of the protocol, by their names."""

    def __init__(self, service: Service, messages: Messages, repository: Repository | None) -> None:
        self._service, self._messages, self._repository = service, messages, repository

    async def ServerLive(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        return self._messages.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        return self._messages.ServerReadyResponse(ready=self._service.ready)

    async def ModelReady(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        model = self._service.model(request.name, request.version)
        return self._messages.ModelReadyResponse(ready=model.ready and not self._service.draining)

    async def ServerMetadata(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        return self._filled("ServerMetadataResponse", self._service.metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        return self._filled("ModelMetadataResponse", self._service.model(request.name, request.version).metadata())

    async def ModelConfig(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        config = self._service.model(request.name, request.version).config()
        return self._filled("ModelConfigResponse", {"config": config})

    async def ModelStatistics(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        service = self._service
        models = [service.model(request.name, request.version)] if request.name else service.models
        return self._filled("ModelStatisticsResponse", {"model_stats": [model.statistics() for model in models]})

    async def RepositoryIndex(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        models = [one for one in self._service.index() if one["state"] == "READY" or not request.ready]
        return self._filled("RepositoryIndexResponse", {"models": models})

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        found = self._service.regions.status(request.name)
        return self._filled("SystemSharedMemoryStatusResponse", {"regions": {one["name"]: one for one in found}})

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        self._service.regions.register(request.name, request.key, request.offset, request.byte_size)
        return self._messages.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        self._service.regions.unregister(request.name)
        return self._messages.SystemSharedMemoryUnregisterResponse()

    async def TraceSetting(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        if request.model_name:
            self._service.model(request.model_name)
        check_unchanged(request.settings)
        answer = self._messages.TraceSettingResponse()
        for name, value in trace_settings(traced=self._service.traced).items():
            answer.settings[name].value.extend(value if isinstance(value, list) else [value])
        return answer

    async def LogSettings(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        check_unchanged(request.settings)
        answer = self._messages.LogSettingsResponse()
        for name, value in log_settings().items():
            setattr(answer.settings[name], {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)], value)
        return answer

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        await known(self._repository).load(self._service, request.model_name, request.parameters)
        return self._messages.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Message:  # noqa: ARG002, N802
        await known(self._repository).unload(self._service, request.model_name)
        return self._messages.RepositoryModelUnloadResponse()

    def _filled(self, name: str, values: dict[str, Any]) -> Message:
        return json_format.ParseDict(values, getattr(self._messages, name)())

    async def ModelInfer(self, request: Any, context: Any) -> Message:  # noqa: N802
        answer: Message = self._messages.ModelInferResponse()
        await self.infer(request, context, answer)
        return answer

    async def infer(self, request: Any, context: Any, answer: Any, before: asyncio.Task[None] | None = None) -> None:
        """Run a model.

        Args:
            request: the request.
            context: of the call that it is in.
            answer: the answer, to write into.
            before: what has to end before; None if the request runs at once.

        Raises:
            RefusedError: the request is refused.
        """
        with self._service.accepted(request.model_name, request.model_version) as call:
            if before is not None:
                await asyncio.wait([before])
            call.received = perf_counter()
            call.headers = headers_of(context.invocation_metadata()) if self._service.traced else None
            times = [context.time_remaining(), _timeout(request.parameters)]
            borrowed = any("shared_memory_region" in tensor.parameters for tensor in request.inputs)
            size = max(0 if request.raw_input_contents else request.ByteSize(), APART_BYTES if borrowed else 0)
            inputs = await self._service.by_size(size, _inputs, call.model, request, self._service.regions)
            check_priority(_plain(request.parameters))
            wanted = [Wanted.of(one.name, _plain(one.parameters)) for one in request.outputs]
            wanted = wanted or [Wanted(name) for name in call.model.outputs]
            call.model.named_once("output", [one.name for one in wanted])
            left = min((one for one in times if one is not None), default=None)
            outputs = await self._service.run(call, inputs, left, sequence=_sequence(request))
            answer.model_name, answer.model_version, answer.id = call.model.name, call.model.version, request.id
            values = [(one, outputs[one.name]) for one in wanted]
            large = sum(value.nbytes for one, value in values if one.is_large(value, APART_BYTES))
            await self._service.by_size(large, self._write, answer, wanted, outputs)

    def _write(self, answer: Any, wanted: Sequence[Wanted], outputs: Outputs) -> None:
        """Write outputs into an answer, and into shared memory. Raises RefusedError."""
        for one in wanted:
            value = one.of_value(outputs[one.name])
            tensor = answer.outputs.add(name=one.name, datatype=datatype_of(value), shape=value.shape)
            stored = one.stored(value, self._service.regions)
            for name, said in (stored or {}).items():
                kind = "string_param" if isinstance(said, str) else "int64_param"
                setattr(tensor.parameters[name], kind, said)
            answer.raw_output_contents.append(b"" if stored else to_bytes(value).tobytes())


def _inputs(model: ServedModel, request: Any, regions: Regions) -> dict[str, Array]:
    """Read the tensors of a request. Raises RefusedError."""
    model.named_once("input", [tensor.name for tensor in request.inputs])
    parts = [Part.of(_plain(tensor.parameters)) for tensor in request.inputs]
    raw, sent = request.raw_input_contents, parts.count(None)
    if raw and len(raw) != sent:
        raise invalid(f"There are {len(raw)} raw contents for {sent} inputs: each has to have its own.")
    inputs: dict[str, Array] = {}
    contents = iter(raw)
    for tensor, part in zip(request.inputs, parts, strict=True):
        spec = model.spec(tensor.name, tensor.datatype, tensor.shape)
        if (raw or part is not None) and tensor.HasField("contents"):
            raise invalid(f"The input '{spec.name}' has typed contents beside raw ones: send either.")
        if part is not None:
            inputs[spec.name] = regions.tensor(spec, part)
        else:
            inputs[spec.name] = of_bytes(next(contents), spec) if raw else of_contents(tensor.contents, spec)
    return inputs


def _plain(parameters: Any) -> dict[str, object]:
    """Return parameters with their values."""
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}
    return {name: getattr(value, kind) if kind else None for name, (value, kind) in chosen.items()}


def _sequence(request: Any) -> Asked | None:
    """Return the sequence parameters of a request; None if it belongs to no sequence. Raises RefusedError."""
    return Asked.of(_plain(request.parameters), request.id)


def _named_sequence(request: Any) -> tuple[str, int | str] | None:
    """Return the model and the name of a request's sequence; None if it belongs to no sequence, or to a wrong one."""
    try:
        asked = _sequence(request)
    except RefusedError:
        return None
    return None if asked is None else (request.model_name, asked.name)


def _timeout(parameters: Any) -> float | None:
    """Return the seconds in which a request has to be answered; None for as long as it takes. Raises RefusedError."""
    if "timeout" not in parameters:
        return None
    given = parameters["timeout"]
    chosen = given.WhichOneof("parameter_choice")
    if chosen not in ("int64_param", "uint64_param") or getattr(given, chosen) < 0:
        raise invalid("The parameter 'timeout' has to be a whole number of microseconds, and at least 0.")
    return getattr(given, chosen) / 1e6 or None
