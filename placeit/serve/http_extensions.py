"""Triton's extensions over HTTP: shared memory, and settings of traces and logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from placeit.serve.bodies import Bodies
from placeit.serve.service import Service
from placeit.serve.settings import check_unchanged, log_settings, trace_settings

__all__ = ["Handler", "more_routes"]

_BYTES: Final = 1 << 14  # most bytes of the body of a request here

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def more_routes(service: Service, bodies: Bodies) -> list[tuple[str, Handler, str]]:
    """Return the paths, handlers and methods of the extensions.

    Args:
        service: whose regions and settings they are.
        bodies: reads the bodies of requests.
    """
    regions = service.regions

    async def status(request: Request) -> Response:
        return JSONResponse(regions.status(request.path_params.get("region", "")))

    async def register(request: Request) -> Response:
        of = await bodies.json_object(request, _BYTES)
        regions.register(request.path_params["region"], of.get("key"), of.get("offset", 0), of.get("byte_size"))
        return Response()

    async def unregister(request: Request) -> Response:
        regions.unregister(request.path_params.get("region", ""))
        return Response()

    async def logging(request: Request) -> Response:
        check_unchanged({} if request.method == "GET" else await bodies.json_object(request, _BYTES))
        return JSONResponse(log_settings())

    async def tracing(request: Request) -> Response:
        if "model" in request.path_params:
            service.model(request.path_params["model"])
        check_unchanged({} if request.method == "GET" else await bodies.json_object(request, _BYTES))
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
