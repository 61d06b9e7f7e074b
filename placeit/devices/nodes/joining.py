"""Join a Ray cluster with this process: check the cluster's token, and configure Ray while it connects."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from placeit.core.errors import DeviceError, first_line
from placeit.devices.nodes.tokens import host_of, wants_token

__all__ = ["Attempt", "check_token_required", "divert_errors", "loopback_only"]

_LOG = logging.getLogger("placeit")

_MODE, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_TOKEN_MODE, _OPEN_MODE = "token", "disabled"
_RECONNECT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "1000000"}
"""By default, Ray ends a process 60 s after the head of its cluster has ended."""


def check_token_required(address: str, token: Path | None) -> None:
    """Raise DeviceError if a Ray cluster requires no token, unless the environment allows that, or if no server answers."""
    if not wants_token(address) and (token is not None or os.environ.get(_MODE) != _OPEN_MODE):
        raise DeviceError(
            f"The Ray cluster at {address} wants no token: any client that reaches it can run code on its nodes. Start them "
            f"with {_MODE}={_TOKEN_MODE} and a token in a file that {_TOKEN_PATH} names; or, if no other user can reach them, "
            f"set {_MODE}={_OPEN_MODE} for this process."
        )


class Attempt:
    """An attempt of Ray to join a cluster. It runs on a separate thread, as it may hang.

    Args:
        ray: the module.
        address: address of the cluster.
        token: file with the token; None for a token that Ray finds by itself.
    """

    def __init__(self, ray: Any, address: str, token: Path | None) -> None:
        self.address = address
        self._ray, self._token = ray, token
        self._failure: BaseException | None = None
        self._lock, self._ended, self._timed_out = threading.Lock(), False, False
        self._thread = threading.Thread(target=self._run, name="placeit ray", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most some seconds, and return whether it has ended; otherwise it is undone when it ends."""
        try:
            self._thread.join(seconds)
        finally:
            with self._lock:
                self._timed_out = not self._ended
        return self._ended

    def check(self) -> None:
        """Raise DeviceError if it has failed."""
        error = self._failure
        if error is None:
            return
        if isinstance(error, DeviceError):
            raise error
        why = first_line(error).rstrip(".")
        if "AuthToken" in why:
            why = f"the token does not match. Set {_MODE}={_TOKEN_MODE}, and {_TOKEN_PATH} to a file with the cluster's token"
        raise DeviceError(f"The Ray cluster at {self.address} refuses this process: {why}.") from error

    def _run(self) -> None:
        loopback = _loopback_of(host_of(self.address))
        with _environment(self._token), _quietly(), contextlib.nullcontext() if loopback is None else loopback_only(loopback):
            try:
                self._init(loopback)
            except BaseException as error:  # noqa: BLE001 (raised by ``check``)
                self._failure = error
        with self._lock:
            self._ended, undo = True, self._failure is not None or self._timed_out
        if undo:
            self._ray.shutdown()
            divert_errors(False)

    def _init(self, node_address: str | None) -> None:
        raylet: Any = self._ray._raylet
        raylet.Config.initialize("")  # reads the environment again: Ray may have been imported before
        if os.environ[_MODE] == _TOKEN_MODE:
            self._check_token(raylet.AuthenticationTokenLoader.instance())
        divert_errors(True)
        raylet.GcsClient(address=self.address)  # reports a wrong token at once; ``ray.init`` would try for 20 s
        self._ray.init(
            self.address,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
            namespace="placeit",
            _node_ip_address=node_address,
        )

    def _check_token(self, tokens: Any) -> None:
        """Make Ray read the token. Raises DeviceError if none is found; Ray would end this process."""
        from ray.exceptions import AuthenticationError

        tokens.reset_cache()
        try:
            found, why = tokens.has_token(ignore_auth_mode=True), "."
        except AuthenticationError as error:
            found, why = False, f" ({first_line(error).partition('. ')[0]})."
        if not found:
            raise DeviceError(
                f"The Ray cluster at {self.address} wants a token, and none was found{why} Set {_TOKEN_PATH} to a file with it."
            )


def divert_errors(wanted: bool) -> None:
    """Make Ray log the errors of a cluster instead of printing them to the standard output of the user's process."""
    from ray._private import worker

    current = worker.print_to_stdstream
    if wanted and not isinstance(current, _Logged):
        worker.print_to_stdstream = _Logged(current)
    elif not wanted and isinstance(current, _Logged):
        worker.print_to_stdstream = current.original


class _Logged:
    """Replacement of Ray's function that prints lines from other processes of a cluster.

    Attributes:
        original: the function.
    """

    def __init__(self, original: Any) -> None:
        self.original = original

    def __call__(self, data: Mapping[str, Any], ignore_prefix: bool = False) -> None:  # noqa: ARG002
        for line in data["lines"]:
            _LOG.debug("Ray: %s", line)


def _loopback_of(host: str) -> str | None:
    """Return the loopback address for a host name that stands for this machine itself; None for any other host."""
    if host == "::1":
        return host
    return "127.0.0.1" if host == "localhost" or host.startswith("127.") else None


@contextlib.contextmanager
def _environment(token: Path | None) -> Iterator[None]:
    """Give Ray the token and switch off its usage reports, by environment variables, while it starts."""
    variables: dict[str, str | None] = {"RAY_USAGE_STATS_ENABLED": "0", **_RECONNECT, _MODE: os.environ.get(_MODE, _TOKEN_MODE)}
    if token is not None:
        variables |= {_MODE: _TOKEN_MODE, _TOKEN_PATH: str(token), "RAY_AUTH_TOKEN": None}
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress Ray's warning that it does not install signal handlers."""
    logger = logging.getLogger("ray._private.worker")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def loopback_only(host: str = "127.0.0.1") -> Iterator[None]:
    """Make Ray listen on a loopback address only; by default it uses the machine's outward address, and listens on all."""
    from ray._private import services

    original = services.get_node_ip_address
    services.get_node_ip_address = lambda address=None: host  # noqa: ARG005
    try:
        yield
    finally:
        services.get_node_ip_address = original
