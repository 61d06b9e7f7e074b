"""The Open Inference Protocol over HTTP: JSON, with tensors in the JSON or as bytes behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from placeit.backends.base import TensorSpec
from placeit.serve.arriving import Room
from placeit.serve.refusal import RefusedError, Status, check_token, invalid, none_of
from placeit.serve.sequences import Asked
from placeit.serve.service import Call, ServedModel, Service
from placeit.serve.tensors import DATATYPES, Array, of_bytes, of_json, sized, to_bytes, to_json
from placeit.serving.answers import Outputs

__all__ = ["application"]

_LOG = logging.getLogger("placeit")
_HEALTH: Final = ("/v2/health/live", "/v2/health/ready")
_HEADER = "inference-header-content-length"
_JSON_BYTES: Final = 16 << 20  # most bytes of JSON in a request, as Python needs many times the memory for it
_LONGEST_US: Final = 1 << 62  # longest time-out in microseconds, which a float can hold
_APART_BYTES: Final = 1 << 16  # bytes of JSON from which on another thread reads and writes it
_FIELDS: Final = 4096  # most fields, names and lists of a request's JSON, besides the values of its tensors
_SCANNED_BYTES: Final = 1 << 16  # bytes of JSON that are scanned at a time; other threads can run in between
_AT_ONCE: Final = 16  # most bytes of all bodies that are kept at once, in multiples of the limit of one body

_WINDOWS: Final = {"identity": 0, "gzip": 31, "deflate": 15}  # content encodings, with zlib's number for them

T = TypeVar("T")
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def application(
    service: Service,
    metrics: CollectorRegistry,
    *,
    most_bytes: int,
    token: bytes | None = None,
    hosts: Container[str] | None = None,
) -> ASGIApp:
    """Return the ASGI application of a service.

    Args:
        service: answers the requests.
        metrics: for the page ``/metrics``.
        most_bytes: of the body of a request.
        token: token that clients have to send, as ``Authorization: Bearer TOKEN``, except for the health pages; None for no
            token.
        hosts: names by which clients may call the server; None for any. They protect a server of this machine alone from web
            pages that people look at on this machine.
    """
    bodies = _Bodies(service, most_bytes)

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": service.ready}, 200 if service.ready else 503)

    async def server(_: Request) -> Response:
        return JSONResponse(service.metadata())

    async def model_ready(request: Request) -> Response:
        model = _model(service, request)
        able = model.ready and not service.draining
        return JSONResponse({"name": model.name, "ready": able}, 200 if able else 503)

    async def metadata(request: Request) -> Response:
        return JSONResponse(_model(service, request).metadata())

    async def config(request: Request) -> Response:
        return JSONResponse(_model(service, request).config())

    async def statistics(request: Request) -> Response:
        models = [_model(service, request)] if "model" in request.path_params else service.models.values()
        return JSONResponse({"model_stats": [model.statistics() for model in models]})

    async def index(_: Request) -> Response:
        return JSONResponse(service.index())

    async def numbers(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(await asyncio.to_thread(encode, metrics), media_type=kind)

    async def infer(request: Request) -> Response:
        parameters = request.path_params
        with service.accepted(parameters["model"], parameters.get("version", "")) as call:
            async with bodies.of(request) as body:
                call.received = perf_counter()
                return await _infer(service, call, request, body)

    model = "/v2/models/{model}"
    routes: list[tuple[str, Handler, str]] = [
        (_HEALTH[0], live, "GET"),
        (_HEALTH[1], ready, "GET"),
        ("/v2", server, "GET"),
        ("/v2/", server, "GET"),
        ("/v2/models/stats", statistics, "GET"),
        ("/v2/repository/index", index, "POST"),
        ("/metrics", numbers, "GET"),
    ]
    for one in (model, model + "/versions/{version}"):
        routes += [
            (one + "/infer", infer, "POST"),
            (one + "/ready", model_ready, "GET"),
            (one + "/stats", statistics, "GET"),
            (one + "/config", config, "GET"),
            (one, metadata, "GET"),
        ]
    app = Starlette(
        routes=[Route(path, handler, methods=[method]) for path, handler, method in routes],
        exception_handlers={RefusedError: _refuse, HTTPException: _no_page, Exception: _fail},
    )
    return app if token is None and hosts is None else _Guarded(app, token, hosts)


def _model(service: Service, request: Request) -> ServedModel:
    """Return the model that a path names. Raises RefusedError."""
    return service.model(request.path_params["model"], request.path_params.get("version", ""))


class _Bodies:
    """Reads the bodies of requests, within a limit of the bytes that are kept at once.

    Args:
        service: whose requests they are.
        most_bytes: of one body; all bodies together may have 16 times as many.
    """

    def __init__(self, service: Service, most_bytes: int) -> None:
        self._service = service
        self._most, self._room = most_bytes, Room(most_bytes * _AT_ONCE, "bytes of requests are being read")

    @contextlib.asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        """Read the body of a request, which counts towards the limit until the context ends. Raises RefusedError."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding not in _WINDOWS:
            raise RefusedError(Status.ENCODED, f"The content encoding '{encoding}' is not supported: gzip and deflate are.")
        if int(request.headers.get("content-length", 0)) > self._most:
            raise self._too_large()
        parts: list[bytes] = []
        size, more = 0, True
        async with self._room.arrival() as arrival:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(Status.GONE, "The client has gone.")
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > self._most:
                    raise self._too_large()
                self._room.take(arrival, len(part))
                parts.append(part)
            self._room.arrived(arrival)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if encoding != "identity":
                body = await self._service.apart(self._decoded, body, _WINDOWS[encoding])
                self._room.take(arrival, len(body))
            yield body

    def _decoded(self, body: bytes, window: int) -> bytes:
        """Decompress a body. Raises RefusedError if it is larger than a body may be, or not compressed in this way."""
        reader = zlib.decompressobj(window)
        try:
            found = reader.decompress(body, self._most + 1)
        except zlib.error as error:
            raise invalid(f"The body is not compressed as its content encoding says: {error}.") from None
        if len(found) > self._most:
            raise self._too_large()
        if not reader.eof:
            raise invalid("The compressed body ends too early.")
        return found

    def _too_large(self) -> RefusedError:
        return RefusedError(
            Status.TOO_LARGE, f"The body of a request has at most {self._most} bytes here (--max-request-bytes)."
        )


@dataclass(frozen=True)
class _Asked:
    """The contents of a request.

    Attributes:
        id: the id that the client has given it; None without one.
        inputs: by name.
        outputs: names of the outputs to return, each with whether to return it as bytes.
        timeout_s: seconds in which it has to be answered; None for as long as it takes.
        sequence: its sequence; None if it belongs to no sequence.
    """

    id: str | None
    inputs: Mapping[str, Array]
    outputs: Sequence[tuple[str, bool]]
    timeout_s: float | None
    sequence: Asked | None = None


async def _infer(service: Service, call: Call, request: Request, body: bytes) -> Response:
    """Answer an inference request. Raises RefusedError."""
    model, size = call.model, len(body)
    said = request.headers.get(_HEADER)
    if said is not None:
        if not (said.isascii() and said.isdecimal() and len(said) < 20 and int(said) <= len(body)):
            raise RefusedError(Status.INVALID, f"The header {_HEADER} is '{said}'; the body has {len(body)} bytes.")
        size = int(said)
    if said is not None and not size:
        asked = _raw(model, body)
    else:
        if size > _JSON_BYTES:
            raise RefusedError(
                Status.TOO_LARGE, f"At most {_JSON_BYTES} bytes of a request may be JSON: send large tensors in binary form."
            )
        asked = await _apart(service, size, _read, model, body, size)
    outputs = await service.run(call, asked.inputs, asked.timeout_s, partial(_gone, request.receive), asked.sequence)
    as_json = sum(outputs[name].nbytes for name, binary in asked.outputs if not binary)
    head, tail = await _apart(service, as_json, _written, model, asked, outputs)
    if not tail:
        return Response(head, media_type="application/json")
    return Response(b"".join([head, *tail]), media_type="application/octet-stream", headers={_HEADER: str(len(head))})


async def _apart(service: Service, size: int, function: Callable[..., T], *args: Any) -> T:
    """Call a function, on another thread if there are many bytes of JSON."""
    return function(*args) if size < _APART_BYTES else await service.apart(function, *args)


async def _gone(receive: Receive) -> None:
    """Return once the client of a request, whose body has been read, has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(model: ServedModel, body: bytes) -> _Asked:
    """Read a request whose body is the bytes of the model's only input. Raises RefusedError."""
    if len(model.inputs) != 1:
        raise invalid(f"The model '{model.name}' has {len(model.inputs)} inputs: a body without JSON is one of one input.")
    inputs = {name: of_bytes(body, sized(spec, len(body))) for name, spec in model.inputs.items()}
    return _Asked(None, inputs, [(name, True) for name in model.outputs], None)


def _read(model: ServedModel, body: bytes, size: int) -> _Asked:
    """Read a request whose first bytes are JSON. Raises RefusedError."""
    text = body[:size]
    if size >= _APART_BYTES:
        _check_bounds(text, model.most_values)
    asked = _parsed(text)
    parameters = _field(asked, "parameters", dict, {})
    if "id" in asked:
        _field(asked, "id", str)
    timeout = _number(parameters.get("timeout", 0))
    if timeout is None:
        raise invalid("The parameter 'timeout' has to be a whole number of microseconds, and at least 0.")
    tensors = _objects(asked, "inputs")
    model.named_once("input", [_field(tensor, "name", str) for tensor in tensors])
    inputs: dict[str, Array] = {}
    rest = memoryview(body)[size:]
    for tensor in tensors:
        spec = _spec(model, tensor)
        of = _field(tensor, "parameters", dict, {})
        taken = of.get("binary_data_size")
        if taken is None:
            if "data" not in tensor:
                raise invalid(f"The input '{spec.name}' has neither 'data' nor the parameter 'binary_data_size'.")
            inputs[spec.name] = of_json(tensor["data"], spec)
            continue
        if "data" in tensor or _number(taken) is None or taken > len(rest):
            raise invalid(
                f"The input '{spec.name}' has {'' if 'data' in tensor else 'no '}'data', and the parameter 'binary_data_size' "
                f"{taken!r}; {len(rest)} bytes are left for it behind the JSON."
            )
        inputs[spec.name] = of_bytes(rest[:taken], spec)
        rest = rest[taken:]
    if len(rest):
        raise invalid(f"Behind the JSON, {len(rest)} bytes belong to no input.")
    binary = _field(parameters, "binary_data_output", bool, False)
    wanted = _objects(asked, "outputs", []) or [{"name": name} for name in model.outputs]
    model.named_once("output", [_field(one, "name", str) for one in wanted])
    outputs = []
    for one in wanted:
        of = _field(one, "parameters", dict, {})
        none_of(of, "classification", "shared_memory_region")
        outputs.append((one["name"], _field(of, "binary_data", bool, binary)))
    return _Asked(asked.get("id"), inputs, outputs, min(timeout, _LONGEST_US) / 1e6 or None, Asked.of(parameters))


def _spec(model: ServedModel, tensor: Mapping[str, Any]) -> TensorSpec:
    """Return the spec of an input as it is sent, after a check of its type and shape. Raises RefusedError."""
    none_of(_field(tensor, "parameters", dict, {}), "shared_memory_region")
    shape = _field(tensor, "shape", list)
    if any(_number(size) is None for size in shape):
        raise invalid(f"The 'shape' of the input '{tensor['name']}' has to consist of whole numbers of at least 0.")
    return model.spec(tensor["name"], _field(tensor, "datatype", str), shape)


def _check_bounds(text: bytes, values: int) -> None:
    """Refuse JSON that has more parts than any request of its model, before it is parsed: it would take many times its memory.

    Args:
        text: the JSON.
        values: most values of all inputs of the model together.

    Raises:
        RefusedError: it has too many parts.
    """
    lists = min(values, _SCANNED_BYTES) + _FIELDS
    bounds = (
        (b"{", _FIELDS, "objects"),
        (b"[", lists, "lists"),
        (b'"', 4 * _FIELDS, "texts"),
        (b",", values + _FIELDS, "values"),
    )
    for sign, most, what in bounds:
        found = 0
        for at in range(0, len(text), _SCANNED_BYTES):
            found += text.count(sign, at, at + _SCANNED_BYTES)
            if found > most:
                raise invalid(
                    f"The JSON of this request has more {what} than the inputs of the model can have: check their shapes, and "
                    "send large tensors in binary form, or as flat lists."
                )


def _parsed(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; other threads can run while many numbers are read. Raises RefusedError."""
    hooks: dict[str, Any] = {}
    if len(text) >= _APART_BYTES:  # Python's parser in C lets no other thread run, unless it calls Python
        hooks = {"parse_int": lambda digits: int(digits), "parse_float": lambda digits: float(digits)}  # noqa: PLW0108
    try:
        found = json.loads(text, parse_constant=_no_number, **hooks)
    except RecursionError:
        raise invalid("The JSON of this request is nested too deeply.") from None
    except ValueError as error:
        raise invalid(f"This request has no valid JSON where it should have: {error}.") from None
    if not isinstance(found, dict):
        raise invalid("A request has to be an object of JSON.")
    return found


def _no_number(name: str) -> NoReturn:
    raise invalid(f"{name} is no JSON: send tensors with such values in binary form.")


def _field(of: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """Return a field of an object. Raises RefusedError if it has another type, or is missing and has no default."""
    value = of.get(name, default)
    if not isinstance(value, kind):
        words = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
        raise invalid(f"'{name}' {'is missing' if name not in of else f'has to be {words[kind]}'} in this request.")
    return value


def _objects(of: Mapping[str, Any], name: str, default: list[Any] | None = None) -> list[dict[str, Any]]:
    """Return a field that is a list of objects. Raises RefusedError."""
    found = _field(of, name, list, default)
    if not all(isinstance(one, dict) for one in found):
        raise invalid(f"'{name}' has to be a list of objects in this request.")
    return found


def _number(value: object) -> int | None:
    """Return a value that is a whole number of at least 0; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _written(model: ServedModel, asked: _Asked, outputs: Outputs) -> tuple[bytes, list[memoryview]]:
    """Return an answer: its JSON, and the tensors that follow as bytes. Raises RefusedError."""
    entries: list[str] = []
    tail: list[memoryview] = []
    for name, binary in asked.outputs:
        value = outputs[name]
        entry: dict[str, Any] = {"name": name, "datatype": DATATYPES[value.dtype.name], "shape": list(value.shape)}
        if binary:
            tail.append(to_bytes(value))
            entries.append(json.dumps(entry | {"parameters": {"binary_data_size": len(tail[-1])}}))
        else:
            entries.append(f'{json.dumps(entry)[:-1]}, "data": {"".join(to_json(name, value))}}}')
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if asked.id is not None:
        head["id"] = asked.id
    return f'{json.dumps(head)[:-1]}, "outputs": [{", ".join(entries)}]}}'.encode(), tail


async def _refuse(_: Request, error: Any) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status is Status.UNAUTHENTICATED else None
    return JSONResponse({"error": str(error)}, error.status.http, headers)


async def _no_page(request: Request, error: Any) -> Response:
    why = f"There is no {request.method} {request.url.path} here: {error.detail}."
    return JSONResponse({"error": why}, error.status_code, error.headers)


async def _fail(_: Request, error: Exception) -> Response:
    _LOG.error("A request has failed: %s: %s", type(error).__name__, error)
    return JSONResponse({"error": "This request has failed in the server, whose log says why."}, 500)


class _Guarded:
    """An application that requires a token of each request, except for the health pages, and to be called by known names."""

    def __init__(self, app: ASGIApp, token: bytes | None, hosts: Container[str] | None) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = dict(scope["headers"])
        try:
            if self._hosts is not None:
                self._check_host(b"//" + headers.get(b"host", b""))
                self._check_host(headers.get(b"origin", b""))
            if self._token is not None and scope["path"] not in _HEALTH:
                check_token(headers.get(b"authorization", b""), self._token)
        except RefusedError as error:
            answer = await _refuse(Request(scope), error)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check_host(self, url: bytes) -> None:
        """Raise RefusedError if a URL has a host by which this server is not called."""
        try:
            host = urlsplit(url.decode("latin-1")).hostname
        except ValueError:
            host = "?"
        if self._hosts is not None and url.strip(b"/") and host not in self._hosts:
            raise RefusedError(
                Status.FORBIDDEN,
                f"This server is for this machine alone, and was called by the name '{host}', or by a page from there: call it "
                "by its address, or start it with --allow-host for this name.",
            )
