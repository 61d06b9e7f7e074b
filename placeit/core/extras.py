"""Optional packages: whether they are installed, their versions, and the command that installs them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from placeit.core.errors import PlaceitError, UsageError

__all__ = ["import_extra", "install", "installed", "need", "versions_of"]

_NAMES = {
    "cupy": "CuPy",
    "torch": "PyTorch",
    "torch_geometric": "PyTorch Geometric",
    "ortools": "OR-tools",
    "pymetis": "PyMetis",
    "ray": "Ray",
    "bokeh": "Bokeh",
    "jinja2": "Jinja",
    "prometheus_client": "prometheus-client",
    "grpc": "gRPC",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "opentelemetry": "OpenTelemetry",
    "uvicorn": "Uvicorn",
    "starlette": "Starlette",
    "tokenizers": "tokenizers",
}


def install(extra: str, package: str = "placeit") -> str:
    """Return the command that installs an extra of a package."""
    return f"pip install '{package}[{extra}]'"


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages, by name; without packages that are not installed, or were built under other names."""
    found = dict[str, str]()
    for name in sorted(packages):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def installed(module: str) -> bool:
    """Return whether a package can be found; it is not imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def need(what: str, extra: str, *modules: str) -> None:
    """Check that packages are installed, without importing them.

    Args:
        what: the feature that needs them; starts the message.
        extra: the extra of placeit that contains them.
        *modules: their import names.

    Raises:
        UsageError: a package is missing; the message says how to install the extra.
    """
    for module in modules:
        if not installed(module):
            raise UsageError(f"{what} needs {_NAMES.get(module, module)}, which is not installed: {install(extra)}")


def import_extra(what: str, extra: str, module: str, error: type[PlaceitError] = UsageError) -> Any:
    """Import a module that belongs to an extra of placeit.

    Args:
        what: the feature that needs it; starts the message.
        extra: the extra.
        module: its import name.
        error: class of the error if the import fails; the message says why, and how to install the extra.
    """
    try:
        return import_module(module)
    except ImportError as reason:
        package = module.partition(".")[0]
        why = "is not installed" if not installed(package) else f"cannot be imported ({reason})"
        raise error(f"{what} needs {_NAMES.get(package, package)}, which {why}: {install(extra)}") from reason
