"""Networks that are emulated for benchmarks: what they delay, hold back and lose, and that nothing is left of them."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import _network
from benchmarks._network import Network, network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_network.reason_why_not()), reason=_network.reason_why_not()),
]
PORT, DELAY_S = 7000, 20e-3
ANSWERING = f"""
import socket, sys
with socket.create_server((sys.argv[1], {PORT})) as server:
    print("up", flush=True)
    while True:
        with server.accept()[0] as sock:
            while count := int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big"):
                sock.recv(count, socket.MSG_WAITALL)
                sock.sendall(b"!")
"""
BURNING = "import time\nbegin = time.perf_counter()\nwhile time.process_time() < 0.3: pass\nprint(time.perf_counter() - begin)"


def asked(made: Network, node: str, sizes: list[int]) -> tuple[list[float], list[bool]]:
    """Seconds until each message is answered; whether one is while the node is cut off, and after it is mended."""
    taken, answered = [], []
    with socket.create_connection((made.address(node), PORT), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in sizes:
            begin = time.perf_counter()
            sock.sendall(size.to_bytes(4, "big") + bytes(size))
            assert sock.recv(1) == b"!"
            taken.append(time.perf_counter() - begin)
        made.cut(node)
        sock.sendall((1).to_bytes(4, "big") + b"x")
        for wait_s in (0.5, 60):
            sock.settimeout(wait_s)
            with contextlib.suppress(TimeoutError):
                answered.append(sock.recv(1) == b"!")
            answered += [False] * (not answered)
            made.mend(node)
    return taken, answered


@pytest.mark.parametrize(("rate", "delay", "count"), [(20e6, DELAY_S, 250_000), (200e6, 0.0, 10_000_000)])
def test_links_delay_and_hold_back_bytes_are_counted_and_can_be_cut(rate: float, delay: float, count: int) -> None:
    with network(("a", "b"), rate=rate, delay=delay) as made:
        place = made.place("b")
        with subprocess.Popen([*place.enter, sys.executable, "-c", ANSWERING, place.host], stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            before = made.crossed()
            (short, long), answered = made.call("a", asked, made, "b", [1, count])
            assert short >= 2 * delay
            assert long >= 2 * delay + 0.9 * count * 8 / rate  # tbf lets a burst pass
            assert made.crossed() - before > count
            assert answered == [False, True]
            server.kill()


@pytest.mark.parametrize("rate", [100e6, 1e9])
def test_calls_bring_what_is_returned_or_raised_and_nothing_is_left_after_an_interrupt(rate: float) -> None:
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(network(("a", "b"), rate=rate, delay=0))
        assert made.call("a", os.path.basename, "/x/y") == "y"
        with pytest.raises(ConnectionRefusedError):
            made.call("a", asked, made, "a", [1])
        groups, running = [made.group(node) for node in made.nodes], subprocess.Popen([*made.place("b").enter, "sleep", "1000"])
        while running.pid not in made.pids("b"):
            time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt), stack:
            raise KeyboardInterrupt
    assert running.wait(60) != 0
    left = [*groups, made.folder, *(Path("/var/run/netns", made.namespace(node)) for node in made.nodes)]
    assert not any(path.exists() for path in left)
    assert not made.switch or not Path(f"/proc/{made.switch}").exists()


@pytest.mark.skipif(bool(_network.reason_why_no_quotas()), reason=_network.reason_why_no_quotas())
def test_a_quota_holds_for_what_a_node_runs() -> None:
    with network(("a",)) as made:
        made.limit("a", 0.25)
        done = subprocess.run([*made.place("a").enter, sys.executable, "-S", "-c", BURNING], capture_output=True, check=True)
        assert float(done.stdout) >= 0.8
        made.limit("a", None)
