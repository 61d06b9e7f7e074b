"""Call functions on the machine of a device: in this process, or on the device's node."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from placeit.backends.base import Format
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.nodes.connection import connected
from placeit.runtime.nodes.actor import local
from placeit.runtime.nodes.formats import Package, encode
from placeit.runtime.nodes.weights import WeightStore

__all__ = ["call_at_device", "call_with_program"]

T = TypeVar("T")

_TIMEOUT_S = 300.0
_ATTEMPTS = 3  # another process may delete pieces of weights that were just sent, to make room


def call_at_device(function: Callable[..., T], device: Device, *arguments: Any) -> T:
    """Call ``function(device, *arguments)`` on the machine of a device, and return the result.

    Args:
        function: a function of a module. On a node it gets the device as the node addresses it; arguments and result are
            pickled.
        device: the device.
        arguments: further arguments.

    Raises:
        DeviceError: the node does not answer; and the errors of the function.
    """
    if not device.where.node:
        return function(device, *arguments)
    return connected().call(device.where.node, functools.partial(function, local(device), *arguments), _TIMEOUT_S)


def call_with_program(function: Callable[..., T], form: Format, program: Any, device: Device, *arguments: Any) -> T:
    """Call ``function(program, device, *arguments)`` on the machine of a device, and return the result.

    Args:
        function: a function of a module. On a node it gets a copy of the program, and the device as the node addresses it;
            arguments and result are pickled.
        form: format of the program.
        program: a program in that format. Weights that a node already has are not sent again.
        device: the device.
        arguments: further arguments.

    Raises:
        DeviceError: the node does not answer, cannot read the program, or has no room for it; and the errors of the function.
    """
    if not device.where.node:
        return function(program, device, *arguments)
    nodes, name = connected(), device.where.node
    package, pieces = encode(form, program)
    job = functools.partial(_called, function, package, local(device), arguments)
    for _ in range(_ATTEMPTS):
        result, missing = nodes.call(name, job, _TIMEOUT_S)
        if missing is None:
            return cast("T", result)
        nodes.call(name, functools.partial(_keep, {piece: pieces[piece] for piece in missing}), _TIMEOUT_S)
    raise DeviceError(f"The node '{name}' has no room for the weights of the model.")


def _called(
    function: Callable[..., T], package: Package, device: Device, arguments: tuple[Any, ...]
) -> tuple[T | None, list[str] | None]:
    """Call a function with a program. Returns its result and None, or None and the pieces of weights that are missing here."""
    store = WeightStore.of_user()
    pieces = store.get(package.pieces)
    if pieces is None:
        return None, store.missing(package.pieces)
    return function(package.program(pieces), device, *arguments), None


def _keep(pieces: Mapping[str, bytes]) -> None:
    WeightStore.of_user().put(pieces)
