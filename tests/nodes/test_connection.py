"""The way into a Ray cluster: whom it leads to, and what is left when it does not."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import placeit
from placeit.core.address import Address
from placeit.core.errors import DeviceError, UsageError
from tests.beside import beside

pytest.importorskip("ray")
from placeit.devices.nodes import connection, joining, local, tokens

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
REFUSED = SETTINGS + bytes([0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88])
RESET = SETTINGS + bytes([0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7])
ANSWERED = SETTINGS + bytes([0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88, 0, 0, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0])


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """Returns a function that starts a listener, which answers every client with the same bytes, and returns its address."""
    with ExitStack() as stack:

        def listen(said: bytes) -> str:
            sock = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer() -> None:
                with suppress(OSError):
                    while True:
                        with sock.accept()[0] as other:
                            other.sendall(said)
                            while other.recv(1000):
                                pass

            stack.enter_context(beside(answer))
            stack.callback(sock.shutdown, socket.SHUT_RDWR)
            return f"127.0.0.1:{sock.getsockname()[1]}"

        yield listen


class FakeRay:
    """Lets everybody in, once it is told to."""

    def __init__(self) -> None:
        self.go, self.said = threading.Event(), list[str]()
        tokens = SimpleNamespace(reset_cache=int, has_token=lambda ignore_auth_mode: True)
        self._raylet = SimpleNamespace(
            Config=SimpleNamespace(initialize=str),
            AuthenticationTokenLoader=SimpleNamespace(instance=lambda: tokens),
            GcsClient=lambda address: None,
        )

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **settings: object) -> None:
        self.said.append(f"begins with {os.environ['RAY_AUTH_MODE']}")
        assert self.go.wait(60)
        self.said.append("is in")

    def shutdown(self) -> None:
        self.said.append("ends")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setattr(connection, "ray_module", lambda: fake)
    yield fake
    fake.go.set()
    connection.disconnect()


@pytest.mark.parametrize("said", [REFUSED, RESET, ANSWERED, b"HTTP/1.1 400 \r\n"])
def test_a_cluster_wants_a_token_unless_it_answers_without(answering: Callable[[bytes], str], said: bytes) -> None:
    assert tokens.wants_token(answering(said)) is (said != ANSWERED)


def test_an_ipv6_address_is_in_brackets_or_not() -> None:
    try:
        sock = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with sock:
        for host in ("[::1]", "::1"):
            tokens.open_socket(f"{host}:{sock.getsockname()[1]}").close()


@pytest.mark.parametrize(
    ("address", "local"),
    [("[::1]:1", "::1"), ("localhost:1", "127.0.0.1"), ("127.0.0.1:1", "127.0.0.1"), ("[fe80::1]:1", None), ("node:1", None)],
)
def test_a_loopback_address_stays_one_for_ray(address: str, local: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[object]()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    fake = FakeRay()
    monkeypatch.setattr(fake, "init", lambda address, **settings: given.append(settings["_node_ip_address"]))
    attempt = joining.Attempt(fake, address, None)
    assert attempt.wait(60)
    joining.divert_errors(False)
    attempt.check()
    assert given == [local]


def test_nobody_at_an_address_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with pytest.raises(DeviceError, match=f"No server answers at 127.0.0.1:{free}"):
        connection.connect(f"127.0.0.1:{free}")


def test_what_listens_and_says_nothing_is_an_error(answering: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_ANSWER_TIMEOUT_S", 0.1)
    with pytest.raises(DeviceError, match="it hangs"):
        connection.connect(answering(SETTINGS))


def test_a_cluster_that_lets_everybody_in_is_used_only_if_that_is_meant(
    answering: Callable[[bytes], str], ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = answering(ANSWERED)
    ray.go.set()
    for token in (None, tmp_path / "token"):
        with pytest.raises(DeviceError, match=r"wants no token.* RAY_AUTH_MODE=disabled"):
            connection.connect(address, token=token)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(DeviceError, match="wants no token"):
        connection.connect(address, token=tmp_path / "token")
    assert ray.said == []
    connection.connect(address)
    assert ray.said == ["begins with disabled", "is in"]


def test_who_says_nothing_of_tokens_asks_for_one(answering: Callable[[bytes], str], ray: FakeRay) -> None:
    ray.go.set()
    connection.connect(answering(REFUSED))
    assert ray.said == ["begins with token", "is in"]
    assert "RAY_AUTH_MODE" not in os.environ


def test_an_attempt_that_was_given_up_is_undone_before_the_next_one(
    answering: Callable[[bytes], str], ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = answering(REFUSED)
    monkeypatch.setattr(connection, "_CONNECT_TIMEOUT_S", 0.1)
    with pytest.raises(DeviceError, match="has not let this process in"):
        connection.connect(address)
    with pytest.raises(DeviceError, match="still tries"):
        connection.connect(address)
    ray.go.set()
    monkeypatch.setattr(connection, "_CONNECT_TIMEOUT_S", 60)
    connection.connect(address)
    assert ray.said[:3] == ["begins with token", "is in", "ends"]
    assert ray.said[-2:] == ["begins with token", "is in"]
    assert ray.said.count("is in") == 2


def test_a_second_connection_is_the_first_one_or_an_error(
    answering: Callable[[bytes], str], ray: FakeRay, tmp_path: Path
) -> None:
    address = answering(REFUSED)
    ray.go.set()
    nodes = connection.connect(address, token=tmp_path / "token", compress="fp16", patience=9)
    assert connection.connect(address, compress="fp16", patience=9) is nodes
    others: list[dict[str, Any]] = [{}, {"compress": "int8", "patience": 9}, {"compress": "fp16", "patience": 5}]
    for settings in [*others, {"compress": "fp16", "patience": 9, "token": tmp_path / "other"}]:
        with pytest.raises(DeviceError, match="another compression, patience or token"):
            connection.connect(address, **settings)
    connection.disconnect()
    assert connection.connect(address) is not nodes


@pytest.mark.parametrize("patience", [0.0, 0.9, -1.0, float("nan"), float("inf")])
def test_patience_that_no_device_could_satisfy_is_an_error(patience: float) -> None:
    with pytest.raises(UsageError, match="Patience is 1 s at least"):
        connection.connect("127.0.0.1:6379", patience=patience)


@pytest.mark.slow
def test_a_real_cluster_without_a_token_is_used_only_if_that_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(local._HEALTH, "RAY_AUTH_MODE", "disabled")
    cluster = local.start(["head"], tmp_path / "cluster.json")
    try:
        with pytest.raises(DeviceError, match="wants no token"):
            connection.connect(cluster.address)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert [*connection.connect(cluster.address).nodes()] == ["head"]
    finally:
        connection.disconnect()
        cluster.stop(tmp_path / "cluster.json")


@pytest.mark.slow
def test_without_its_token_a_real_cluster_that_wants_one_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray looks for it
    cluster = local.start(["head"], tmp_path / "cluster.json")
    try:
        with pytest.raises(DeviceError, match=r"none was found\. Set RAY_AUTH_TOKEN_PATH"):
            connection.connect(cluster.address)
        with pytest.raises(DeviceError, match=r"none was found .*cannot be opened or is empty: /nowhere"):
            connection.connect(cluster.address, token=Path("/nowhere"))
        wrong = tmp_path / "token"
        wrong.write_text("ab" * 32)
        with pytest.raises(DeviceError, match="token does not match"):
            connection.connect(cluster.address, token=wrong)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "cd" * 32)  # of another cluster
        assert [*connection.connect(cluster.address, token=cluster.token).nodes()] == ["head"]
        connection.disconnect()
        for pid in cluster.pids()[:2]:  # as after a crash
            os.kill(pid, signal.SIGKILL)
    finally:
        connection.disconnect()
        cluster.stop(tmp_path / "cluster.json")
    assert cluster.pids() == []


@pytest.mark.slow
def test_nodes_without_placeit_or_with_another_version_are_errors_that_say_so(tmp_path: Path) -> None:
    places, source = dict[str, local.Place](), Path(placeit.__file__).parents[1]
    for name, change in (
        ("edge1", "sys.modules['placeit'] = None"),
        ("edge2", "sys.modules['placeit.devices.nodes.connection'] = None"),
        ("edge3", "import placeit.core.version; placeit.core.version.__version__ = '0.0.0'"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(
            f"import sys\nif any('default_worker' in word for word in sys.orig_argv):\n    {change}\n"
        )
        places[name] = local.Place(enter=("env", f"PYTHONPATH={tmp_path / name}:{source}"))
    cluster = local.start(["head", *places], tmp_path / "cluster.json", places=places)
    try:
        nodes = connection.connect(cluster.address, token=cluster.token)
        for name in ("edge1", "edge2"):
            with pytest.raises(DeviceError, match=f"The node '{name}' has no placeit, or another version of it"):
                nodes.device(Address("CPU", node=name))
        with pytest.raises(DeviceError, match=r"The node 'edge3' has placeit 0\.0\.0, and this process has placeit"):
            nodes.device(Address("CPU", node="edge3"))
    finally:
        connection.disconnect()
        cluster.stop(tmp_path / "cluster.json")
