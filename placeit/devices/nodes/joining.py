"""The way of this process into a Ray cluster, and what Ray is told on it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from placeit.core.errors import DeviceError, first_line
from placeit.devices.nodes.tokens import wants_token

__all__ = ["Attempt", "check_guarded", "divert_errors", "loopback_only"]

_LOG = logging.getLogger("placeit")

_MODE, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_GUARDED, _OPEN = "token", "disabled"
_SURVIVES = {"RAY_gcs_rpc_server_reconnect_timeout_s": "1000000"}
"""Ray ends a process 60 s after the head of its cluster otherwise."""


def check_guarded(address: str, token: Path | None) -> None:
    """Raise DeviceError if a Ray cluster wants no token, unless the environment says that this is meant, or nobody answers."""
    if not wants_token(address) and (token is not None or os.environ.get(_MODE) != _OPEN):
        raise DeviceError(
            f"The Ray cluster at {address} wants no token: whoever reaches it can run code on its nodes. Start them with "
            f"{_MODE}={_GUARDED} and a token in a file that {_PATH} names; or, if nobody else can reach them, set "
            f"{_MODE}={_OPEN} for this process."
        )


class Attempt:
    """Ray on its way into a cluster, on a thread of its own, as that may hang.

    Args:
        ray: the module.
        address: of the cluster.
        token: a file; None for what Ray finds by itself.
    """

    def __init__(self, ray: Any, address: str, token: Path | None) -> None:
        self.address = address
        self._ray, self._token = ray, token
        self._failure: BaseException | None = None
        self._lock, self._ended, self._given_up = threading.Lock(), False, False
        self._thread = threading.Thread(target=self._run, name="placeit ray", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, and return whether it has ended; if it has not, it is undone when it does."""
        try:
            self._thread.join(seconds)
        finally:
            with self._lock:
                self._given_up = not self._ended
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
            why = f"the token does not match. Set {_MODE}={_GUARDED}, and {_PATH} to a file with the cluster's token"
        raise DeviceError(f"The Ray cluster at {self.address} refuses this process: {why}.") from error

    def _run(self) -> None:
        local = _is_loopback(self.address.rpartition(":")[0])
        with _environment(self._token), _quietly(), loopback_only(local):
            try:
                self._init(local)
            except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                self._failure = error
        with self._lock:
            self._ended, undo = True, self._failure is not None or self._given_up
        if undo:
            self._ray.shutdown()
            divert_errors(False)

    def _init(self, local: bool) -> None:
        raylet: Any = self._ray._raylet
        raylet.Config.initialize("")  # reads the environment once more: Ray may have been imported before
        if os.environ[_MODE] == _GUARDED:
            self._check_token(raylet.AuthenticationTokenLoader.instance())
        divert_errors(True)
        raylet.GcsClient(address=self.address)  # says at once that a token is wrong; the other tries for 20 s
        self._ray.init(
            self.address,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
            namespace="placeit",
            _node_ip_address="127.0.0.1" if local else None,
        )

    def _check_token(self, tokens: Any) -> None:
        """Have Ray read the token. Raises DeviceError if there is none, without which it would end this process."""
        from ray.exceptions import AuthenticationError

        tokens.reset_cache()
        try:
            found, why = tokens.has_token(ignore_auth_mode=True), "."
        except AuthenticationError as error:
            found, why = False, f" ({first_line(error).partition('. ')[0]})."
        if not found:
            raise DeviceError(
                f"The Ray cluster at {self.address} wants a token, and there is none{why} Set {_PATH} to a file with it."
            )


def divert_errors(wanted: bool) -> None:
    """Have Ray log the errors of a cluster, instead of printing them to the standard output of the user's process."""
    from ray._private import worker

    printing = worker.print_to_stdstream
    if wanted and not isinstance(printing, _Diverted):
        worker.print_to_stdstream = _Diverted(printing)
    elif not wanted and isinstance(printing, _Diverted):
        worker.print_to_stdstream = printing.found


class _Diverted:
    """In the place of Ray's function that prints lines from other processes of a cluster."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def __call__(self, data: Mapping[str, Any], ignore_prefix: bool = False) -> None:  # noqa: ARG002
        for line in data["lines"]:
            _LOG.debug("Ray: %s", line)


def _is_loopback(host: str) -> bool:
    """Return whether a host is this machine, seen from itself."""
    return host in ("localhost", "::1") or host.startswith("127.")


@contextlib.contextmanager
def _environment(token: Path | None) -> Iterator[None]:
    """Tell Ray the token and to report nothing, while it starts."""
    said: dict[str, str | None] = {"RAY_USAGE_STATS_ENABLED": "0", **_SURVIVES, _MODE: os.environ.get(_MODE, _GUARDED)}
    if token is not None:
        said |= {_MODE: _GUARDED, _PATH: str(token), "RAY_AUTH_TOKEN": None}
    before = {name: os.environ.get(name) for name in said}
    _set_environment(said)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(said: Mapping[str, str | None]) -> None:
    for name, value in said.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Have Ray not warn that it leaves the process's signal handlers alone."""
    logger = logging.getLogger("ray._private.worker")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def loopback_only(wanted: bool = True) -> Iterator[None]:
    """Have Ray listen on the loopback address: it takes the machine's outward one otherwise, and then listens everywhere."""
    if not wanted:
        yield
        return
    from ray._private import services

    found = services.get_node_ip_address
    services.get_node_ip_address = lambda address=None: "127.0.0.1"  # noqa: ARG005
    try:
        yield
    finally:
        services.get_node_ip_address = found
