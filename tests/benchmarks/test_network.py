"""Networks that are emulated for benchmarks: what they delay, hold back and lose."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks import _network
from benchmarks._network import Network, network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_network.reason_why_not()), reason=_network.reason_why_not()),
]

PORT, DELAY_S = 7000, 20e-3
COUNTING = f"""
import socket, sys
with socket.create_server((sys.argv[1], {PORT})) as server:
    print("up", flush=True)
    while True:
        with server.accept()[0] as sock:
            while count := int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big"):
                sock.recv(count, socket.MSG_WAITALL)
                sock.sendall(b"!")
"""


@contextmanager
def answering(made: Network, node: str) -> Iterator[None]:
    """A process on a node that answers each message, a length and as many bytes, with a byte."""
    place = made.place(node)
    server = subprocess.Popen([*place.enter, sys.executable, "-c", COUNTING, place.host], stdout=subprocess.PIPE)
    with server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            yield
        finally:
            server.kill()


def sent(host: str, sizes: list[int], silent_s: float) -> list[float]:
    """Seconds until each of some messages is answered, one after the other; the last is infinite if it is not in time."""
    taken = []
    with socket.create_connection((host, PORT), timeout=20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(silent_s)
        for size in sizes:
            begin = time.perf_counter()
            sock.sendall(size.to_bytes(4, "big") + bytes(size))
            try:
                assert sock.recv(1) == b"!"
            except TimeoutError:
                return [*taken, float("inf")]
            taken.append(time.perf_counter() - begin)
    return taken


def across_a_cut(made: Network, node: str) -> list[bool]:
    """Whether a message is answered while a node is cut off, and, when it is mended, that one and another."""
    with socket.create_connection((made.address(node), PORT), timeout=20) as sock:
        made.cut(node)
        sock.sendall((1).to_bytes(4, "big") + b"x")
        sock.settimeout(0.5)
        answers = [_answered(sock)]
        made.mend(node)
        sock.settimeout(20)
        answers.append(_answered(sock))
        sock.sendall((1).to_bytes(4, "big") + b"x")
        return [*answers, _answered(sock)]


def _answered(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b"!"
    except TimeoutError:
        return False


def namespaces() -> set[str]:
    folder = Path("/var/run/netns")
    return {entry.name for entry in folder.iterdir()} if folder.exists() else set()


def test_the_switch_delays_frames_holds_back_bytes_and_cuts_nodes_off() -> None:
    rate, count = 20e6, 250_000
    with network(("a", "b"), rate=rate, delay=DELAY_S) as made, answering(made, "b"):
        before = made.crossed()
        short, long = made.call("a", sent, made.address("b"), [1, count], 20.0)
        crossed = made.crossed() - before
        assert short >= 2 * DELAY_S
        assert long >= 2 * DELAY_S + count * 8 / rate
        assert count < crossed < 1.2 * count
        assert made.switch_cpu() >= 0
        assert made.call("a", across_a_cut, made, "b") == [False, True, True]


def test_a_fast_link_has_its_rate_and_can_be_cut() -> None:
    rate, count = 200e6, 10_000_000
    with network(("a", "b"), rate=rate, delay=0) as made, answering(made, "b"):
        _, taken = made.call("a", sent, made.address("b"), [1, count], 20.0)
        assert taken >= 0.9 * count * 8 / rate  # tbf lets a burst pass
        assert made.call("a", across_a_cut, made, "b") == [False, True, True]
    with pytest.raises(ValueError, match="cannot be delayed"), network(("a",), rate=rate, delay=DELAY_S):
        pass


@pytest.mark.parametrize("rate", [100e6, 1e9])
def test_nothing_is_left_after_an_interrupt(rate: float) -> None:
    before, stack = namespaces(), ExitStack()
    made = stack.enter_context(network(("a", "b"), rate=rate, delay=0))
    groups = [made.group(node) for node in made.nodes]
    running = subprocess.Popen([*made.place("b").enter, "sleep", "1000"])
    while running.pid not in made.pids("b"):
        time.sleep(0.01)
    with pytest.raises(KeyboardInterrupt), stack:
        raise KeyboardInterrupt
    assert running.wait(20) != 0
    assert namespaces() == before
    assert not any(group.exists() for group in groups)
    assert not made.folder.exists()
    assert not made.switch or not Path(f"/proc/{made.switch}").exists()


@pytest.mark.skipif(bool(_network.reason_why_no_quotas()), reason=_network.reason_why_no_quotas())
def test_a_quota_holds_for_what_a_node_runs() -> None:
    burn = "import time\nbegin = time.perf_counter()\nwhile time.process_time() < 0.3: pass\nprint(time.perf_counter() - begin)"
    with network(("a",)) as made:
        made.limit("a", 0.25)
        done = subprocess.run([*made.place("a").enter, sys.executable, "-S", "-c", burn], capture_output=True, check=True)
        assert float(done.stdout) >= 0.8
        made.limit("a", None)


def test_a_call_brings_what_is_returned_or_raised() -> None:
    with network(("a",)) as made:
        assert made.call("a", os.path.basename, "/x/y") == "y"
        with pytest.raises(ConnectionRefusedError):
            made.call("a", sent, made.address("a"), [1], 1.0)
        with pytest.raises(TimeoutError):
            made.call("a", time.sleep, 60, timeout=0.5)
