"""Triton's extensions over HTTP: shared memory, and settings of traces and logs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from placeit.serve.refusal import RefusedError, Status, invalid
from placeit.serve.service import Service
from placeit.serve.settings import check_unchanged, log_settings, trace_settings

__all__ = ["Handler", "more_routes"]

_BYTES: Final = 1 << 14  # most bytes of the body of a request here

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Bodies: TypeAlias = Callable[[Request], AbstractAsyncContextManager[bytes | memoryview]]


def more_routes(service: Service, bodies: Bodies) -> list[tuple[str, Handler, str]]:
    """Return the paths, handlers and methods of the extensions.

    Args:
        service: whose regions and settings they are.
        bodies: reads the body of a request.
    """
    regions = service.regions

    async def status(request: Request) -> Response:
        return JSONResponse(regions.status(request.path_params.get("region", "")))

    async def register(request: Request) -> Response:
        of = await _json(request, bodies)
        regions.register(request.path_params["region"], of.get("key"), of.get("offset", 0), of.get("byte_size"))
        return Response()

    async def unregister(request: Request) -> Response:
        regions.unregister(request.path_params.get("region", ""))
        return Response()

    async def logging(request: Request) -> Response:
        check_unchanged({} if request.method == "GET" else await _json(request, bodies))
        return JSONResponse(log_settings())

    async def tracing(request: Request) -> Response:
        if "model" in request.path_params:
            service.model(request.path_params["model"])
        check_unchanged({} if request.method == "GET" else await _json(request, bodies))
        return JSONResponse(trace_settings(traced=service.traced))

    shared, region = "/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{region}"
    return [
        (shared + "/status", status, "GET"),
        (region + "/status", status, "GET"),
        (region + "/register", register, "POST"),
        (shared + "/unregister", unregister, "POST"),
        (region + "/unregister", unregister, "POST"),
        *(("/v2/logging", logging, method) for method in ("GET", "POST")),
        *(
            (path, tracing, method)
            for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting")
            for method in ("GET", "POST")
        ),
    ]


async def _json(request: Request, bodies: Bodies) -> dict[str, Any]:
    """Return the JSON object of a request; an empty one without a body. Raises RefusedError."""
    async with bodies(request) as body:
        if len(body) > _BYTES:
            raise RefusedError(Status.TOO_LARGE, f"The body of this request has at most {_BYTES} bytes.")
        try:
            found = json.loads(bytes(body)) if body else {}
        except (ValueError, RecursionError) as error:
            raise invalid(f"This request has no valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise invalid("A request has to be an object of JSON.")
    return found
