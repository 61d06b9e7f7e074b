"""Settings of traces and logs, in Triton's format. Clients can read them, and not change them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from placeit.serve.refusal import RefusedError, Status

__all__ = ["check_unchanged", "log_settings", "trace_settings"]

_LOG = logging.getLogger("placeit")


def log_settings() -> dict[str, Any]:
    """Return what the server logs."""
    return {
        "log_file": "",
        "log_info": _LOG.isEnabledFor(logging.INFO),
        "log_warning": _LOG.isEnabledFor(logging.WARNING),
        "log_error": _LOG.isEnabledFor(logging.ERROR),
        "log_verbose_level": int(_LOG.isEnabledFor(logging.DEBUG)),
        "log_format": "default",
    }


def trace_settings(*, traced: bool) -> dict[str, Any]:
    """Return which requests have traces: all, of which OpenTelemetry chooses some, or none."""
    return {
        "trace_level": ["TIMESTAMPS" if traced else "OFF"],
        "trace_rate": "1",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }


def check_unchanged(asked: Mapping[str, object]) -> None:
    """Raise RefusedError if a client wants to change settings."""
    if asked:
        raise RefusedError(
            Status.FORBIDDEN,
            "Clients cannot change the logs and traces of this server: configure its logger 'placeit' and OpenTelemetry's "
            "variables OTEL_* where it is started.",
        )
