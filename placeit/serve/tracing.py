"""Spans of requests for OpenTelemetry, if its SDK is installed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from placeit.core.extras import installed
from placeit.core.version import __version__

__all__ = ["Traces", "traces_of"]


class Traces:
    """Writes a span for each request, with a child for each of its stages.

    Args:
        provider: OpenTelemetry's provider of tracers.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry import propagate, trace

        self._api, self._extract = trace, propagate.extract
        self._tracer = provider.get_tracer("placeit", __version__)

    def write(
        self, model: str, version: str, headers: Mapping[str, str], stages: Sequence[tuple[str, float, float]], *, well: bool
    ) -> None:
        """Write the spans of a request that has ended.

        Args:
            model: name of its model.
            version: version of its model.
            headers: its headers; its span belongs to the trace that the header ``traceparent`` names.
            stages: name, begin and end of each stage, in seconds of ``time.perf_counter``; NaN for stages not reached.
            well: whether it succeeded.
        """
        shift, end = time.time() - time.perf_counter(), time.perf_counter()
        api, context = self._api, self._extract(headers)

        def at(seconds: float) -> int:
            return round((seconds + shift) * 1e9)

        about = {"placeit.model": model, "placeit.model_version": version}
        begun = at(stages[0][1])
        span = self._tracer.start_span(f"infer {model}", context, api.SpanKind.SERVER, about, start_time=begun)
        if not well:
            span.set_status(api.StatusCode.ERROR)
        if span.is_recording():
            inside = api.set_span_in_context(span, context)
            for name, start, stop in stages:
                if not math.isnan(start + stop):
                    self._tracer.start_span(name, inside, start_time=at(start)).end(at(stop))
        span.end(at(end))


def traces_of(provider: Any = None) -> Traces | None:
    """Return the writer of spans; None if nothing reads them.

    Args:
        provider: OpenTelemetry's provider of tracers; None for the one of the process.
    """
    if provider is not None:
        return Traces(provider)
    if not installed("opentelemetry.trace"):
        return None
    from opentelemetry import trace

    found = trace.get_tracer_provider()
    return None if isinstance(found, trace.ProxyTracerProvider | trace.NoOpTracerProvider) else Traces(found)
