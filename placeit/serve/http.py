"""The Open Inference Protocol over HTTP: JSON, with tensors in the JSON or as bytes behind it."""

from __future__ import annotations

import asyncio
import functools
import gzip
import re
from collections.abc import Container, Mapping
from time import perf_counter
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from placeit.serve.arriving import Room
from placeit.serve.bodies import Bodies
from placeit.serve.completions import text_routes
from placeit.serve.http_answers import Pieces, takes_gzip
from placeit.serve.http_connection import drop, on_leave
from placeit.serve.http_extensions import Handler, more_routes
from placeit.serve.infer_json import read, read_raw, written
from placeit.serve.refusal import RefusedError, Status, check_token, invalid, told
from placeit.serve.repository import Repository, known
from placeit.serve.served_model import Call, ServedModel
from placeit.serve.service import BRIEF_BYTES, Service
from placeit.serve.wanted import work

__all__ = ["application"]

_HEALTH: Final = ("/v2/health/live", "/v2/health/ready")
_HEADER = "inference-header-content-length"
_JSON_BYTES: Final = 16 << 20  # most bytes of JSON in a request, as Python needs many times the memory for it
_PIECE_BYTES: Final = 1 << 16  # from which on answers of JSON are written in pieces
_SMALL_BYTES: Final = 1 << 16  # most bytes of a request without tensors
_PLACEMENT_BYTES: Final = 1 << 22  # most bytes of a request that places a model: about 50,000 ops
_JSON: Final = (b"content-type", b"application/json")
_BYTES: Final = (b"content-type", b"application/octet-stream")
_INFER: Final = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
_OF_FORMS: Final = (b"text/plain", b"multipart/form-data")  # types that a web page may send to any site


T = TypeVar("T")


def application(
    service: Service,
    metrics: CollectorRegistry,
    *,
    max_bytes: int,
    room: Room,
    token: bytes | None = None,
    hosts: Container[str] | None = None,
    repository: Repository | None = None,
) -> ASGIApp:
    """Return the ASGI application of a service.

    Args:
        service: answers the requests.
        metrics: for the page ``/metrics``.
        max_bytes: of the body of a request.
        room: bytes of requests and their answers that are kept at once.
        token: token that clients have to send, as ``Authorization: Bearer TOKEN``, except for the health pages; None for no
            token.
        hosts: names by which clients may call the server; None for any. They protect a local server from web pages.
        repository: loads and unloads models; None if they stay as they are.
    """
    bodies = Bodies(service, max_bytes, room)
    infer = _Inference(service, bodies)

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
        of = request.path_params
        return JSONResponse({"model_stats": service.statistics(of.get("model", ""), of.get("version", ""))})

    async def index(request: Request) -> Response:
        wanted = await _parameters(request, bodies)
        return JSONResponse([one for one in service.index() if one["state"] == "READY" or wanted.get("ready") is not True])

    async def load(request: Request) -> Response:
        most = _PLACEMENT_BYTES if repository is not None and repository.control else _SMALL_BYTES
        parameters = (await _parameters(request, bodies, most)).get("parameters") or {}
        return JSONResponse({"outcome": await known(repository).load(service, request.path_params["model"], parameters)})

    async def unload(request: Request) -> Response:
        await known(repository).unload(service, request.path_params["model"])
        return Response()

    async def numbers(request: Request) -> Response:
        try:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
        except TypeError:  # it asks for a version that is not a number
            encode, kind = choose_encoder("")
        return Response(await asyncio.to_thread(encode, metrics), media_type=kind)

    model = "/v2/models/{model}"
    routes: list[tuple[str, Handler | ASGIApp, str]] = [
        (_HEALTH[0], live, "GET"),
        (_HEALTH[1], ready, "GET"),
        ("/v2", server, "GET"),
        ("/v2/", server, "GET"),
        ("/v2/models/stats", statistics, "GET"),
        ("/v2/repository/index", index, "POST"),
        ("/v2/repository/models/{model}/load", load, "POST"),
        ("/v2/repository/models/{model}/unload", unload, "POST"),
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
    routes += more_routes(service, bodies)
    app = Starlette(
        routes=[
            *(Route(path, handler, methods=[method]) for path, handler, method in routes),
            *text_routes(service, bodies),
        ],
        exception_handlers={RefusedError: _refuse, HTTPException: _no_page, Exception: _fail},
    )
    direct = _Direct(app, infer)
    return direct if token is None and hosts is None else _Guarded(direct, token, hosts)


def _model(service: Service, request: Request) -> ServedModel:
    """Return the model that a path names. Raises RefusedError."""
    return service.model(request.path_params["model"], request.path_params.get("version", ""))


async def _parameters(request: Request, bodies: Bodies, most: int = _SMALL_BYTES) -> dict[str, Any]:
    """Read a JSON object of at most ``most`` bytes, or an empty body. Raises RefusedError."""
    found = await bodies.json_object(request, most)
    if not isinstance(found.get("parameters"), dict | None):
        raise invalid("The 'parameters' of this request are an object.")
    return found


async def _infer(service: Service, call: Call, request: Request, body: memoryview) -> Pieces:
    """Answer an inference request. Raises RefusedError."""
    model, size = call.model, len(body)
    said = request.headers.get(_HEADER)
    if said is not None:
        if not (said.isascii() and said.isdecimal() and len(said) < 20 and int(said) <= len(body)):
            raise RefusedError(Status.INVALID, f"The header {_HEADER} is '{said}'; the body has {len(body)} bytes.")
        size = int(said)
    if said is not None and not size:
        asked = await service.by_size(0, read_raw, model, body, copied=len(body))
    else:
        if size > _JSON_BYTES:
            raise RefusedError(
                Status.TOO_LARGE, f"At most {_JSON_BYTES} bytes of a request may be JSON: send large tensors in binary form."
            )
        asked = await service.by_size(size, read, model, body, size, copied=len(body) - size)
    inputs, head = asked.inputs, asked.head
    if asked.borrowed:
        inputs = {**inputs, **await service.apart(service.regions.tensors, asked.borrowed, brief=True)}
    outputs = await service.run(
        call, inputs, head.timeout_s, functools.partial(on_leave, request.scope), head.sequence, head.priority
    )
    write = functools.partial(written, call.model, asked, outputs, service.regions)
    text, tail = await service.by_size(function=write, **work(head.outputs, outputs))
    if tail:
        return Pieces([text, *tail], (_HEADER.encode(), b"%d" % len(text)), _BYTES)
    if len(text) < _PIECE_BYTES or not takes_gzip(request):
        return Pieces([text], _JSON)
    packed = await service.apart(gzip.compress, text, 1, brief=len(text) < BRIEF_BYTES)
    return Pieces([packed], _JSON, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


async def _refuse(_: Request, error: Any) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status is Status.UNAUTHENTICATED else None
    return JSONResponse({"error": str(error)}, error.status.http, headers)


async def _no_page(request: Request, error: Any) -> Response:
    why = f"There is no {request.method} {request.url.path} here: {error.detail}."
    return JSONResponse({"error": why}, error.status_code, error.headers)


async def _fail(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(told(error))}, 500)


class _Inference:
    """An application that answers requests for inference, whose path parameters are the model and the version.

    Args:
        service: has the models.
        bodies: reads the bodies of requests.
    """

    def __init__(self, service: Service, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; it takes room until the client has its answer."""
        request, of, body = Request(scope, receive), scope["path_params"], None
        answer: ASGIApp
        try:
            try:
                with self._service.accepted(of["model"], of.get("version", "")) as call:
                    call.headers = request.headers if self._service.traced else None
                    body = await self._bodies.read(request)
                    call.received = perf_counter()
                    answer = found = await _infer(self._service, call, request, body.data)
                body.answered(found.size, drop(scope))
            except RefusedError as error:
                answer = await _refuse(request, error)
            except Exception as error:  # noqa: BLE001 (clients are told only that the request failed)
                answer = await _fail(request, error)
            await answer(scope, receive, send)
        finally:
            if body is not None:
                body.close()


class _Direct:
    """An application that answers requests for inference without the overhead of Starlette's layers.

    Args:
        app: answers all other requests.
        infer: answers a request for inference, whose path parameters are the model and the version.
    """

    def __init__(self, app: ASGIApp, infer: ASGIApp) -> None:
        self._app, self._infer = app, infer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        named = _INFER.fullmatch(scope["path"])
        if named is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["path_params"] = named.groupdict("")
        await self._infer(scope, receive, send)


def _check_page(headers: Mapping[bytes, bytes]) -> None:
    """Raise RefusedError if the headers show that a page of another site, or a form of a page, sends the request."""
    if headers.get(b"sec-fetch-site") == b"cross-site" and b"origin" not in headers:
        raise RefusedError(Status.FORBIDDEN, "This server is for this machine alone: pages of other sites may not call it.")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind in _OF_FORMS:
        raise RefusedError(Status.ENCODED, f"The content type {kind.decode()} is not accepted: send application/json.")


@functools.lru_cache(64)
def _host_of(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return "?"


class _Guarded:
    """An application that checks the token of each request, except for health pages, and the name by which it is called."""

    def __init__(self, app: ASGIApp, token: bytes | None, hosts: Container[str] | None) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = dict(scope["headers"])
        try:
            if self._hosts is not None:
                for host in (value for name, value in scope["headers"] if name == b"host"):
                    self._check_host(b"//" + host)
                self._check_host(headers.get(b"origin", b""))
                _check_page(headers)
            if self._token is not None and scope["path"] not in _HEALTH:
                check_token(headers.get(b"authorization", b""), self._token)
        except RefusedError as error:
            answer = await _refuse(Request(scope), error)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check_host(self, url: bytes) -> None:
        """Raise RefusedError if a URL has a host by which this server is not called."""
        host = _host_of(url)
        if self._hosts is not None and url.strip(b"/") and host not in self._hosts:
            raise RefusedError(
                Status.FORBIDDEN,
                f"This server is for this machine alone, and was called as '{host}', or by a page from there: call it by its "
                "address, or start it with --allow-host for this name.",
            )
