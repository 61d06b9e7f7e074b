"""``placeit run --live`` and ``--metrics-port``: what a server does while requests arrive."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from placeit.core.interrupts import INTERRUPTED

TIMEOUT_S = 240.0  # for what takes a second or two, unless the machine is busy


def succeeded(text: str) -> float:
    """How many requests have succeeded, by a page of metrics; 0 for an empty one."""
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    counts = [one.value for one in samples if one.labels.get("outcome") == "succeeded"]
    return sum(counts)


def test_elsewhere_than_on_a_terminal_there_are_lines_on_standard_error_and_one_object_on_standard_output(
    cli: Any, tiny: Path, placement: Path
) -> None:
    options = ("--rate", 1000, "--requests", 30, "--live", "--json", "--warmup", 3)
    result = cli("run", tiny, "-p", placement, *options)
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    (*_, last) = result.stderr.splitlines()
    assert f"requests {data['arrived']} arrived, {data['ended']} succeeded, 0 failed; throughput " in last
    for device in data["utilization"]:
        assert f"{device} " in last.partition("; busy ")[2]


def test_metrics_are_there_while_requests_arrive_and_have_the_numbers_of_the_result(
    cli: Any, tiny: Path, placement: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from placeit.report.metrics import Metrics
    from placeit.workbench import serving

    pages, texts, make, offer = [], [], Metrics.__init__, serving.offer

    def made(self: Metrics, *arguments: object) -> None:
        make(self, *arguments)  # type: ignore[arg-type]
        pages.append(self)
        texts.append(urlopen(self.url, timeout=60).read().decode())

    def offered(*arguments: Any) -> object:
        served = offer(*arguments)
        texts.append(urlopen(pages[0].url, timeout=60).read().decode())
        return served

    monkeypatch.setattr(Metrics, "__init__", made)
    monkeypatch.setattr(serving, "offer", offered)
    result = cli("run", tiny, "-p", placement, "--rate", 1000, "--requests", 20, "--metrics-port", 0, "--json")
    assert result.exit_code == 0, result.stderr
    (page,) = pages
    assert f"metrics: {page.url}\n" in result.stderr
    assert [succeeded(text) for text in texts] == [0, json.loads(result.stdout)["ended"]] == [0, 20]
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", page.port)):
        pass


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Ctrl-C has its effect in the processes that a test starts, though a shell may have started this one without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_leaves_the_terminal_in_order_and_the_result_on_standard_output(
    tiny: Path, placement: Path, tmp_path: Path, cost_cache: Path
) -> None:
    options = ["--rate", 100, "--seconds", 3600, "--live", "--metrics-port", 0, "--json"]
    command = [sys.executable, "-m", "placeit", "run", str(tiny), "-p", str(placement), *map(str, options)]
    environment = os.environ | {"PLACEIT_CACHE": str(cost_cache), "TERM": "xterm", "COLUMNS": "80"}
    ours, theirs = os.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, env=environment)
    os.close(theirs)
    shown: list[bytes] = []

    def read() -> None:
        while piece := _read(ours):
            shown.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        deadline, url = time.monotonic() + TIMEOUT_S, ""
        while not (url and succeeded(urlopen(url, timeout=60).read().decode()) and b"throughput" in b"".join(shown)):
            assert process.poll() is None, b"".join(shown)
            assert time.monotonic() < deadline, b"".join(shown)
            time.sleep(0.05)
            found = re.search(rb"metrics: (http://127\.0\.0\.1:\d+/metrics)", b"".join(shown))
            url = found[1].decode() if found else ""
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
        reader.join(60)
        os.close(ours)
    text = b"".join(shown).decode()
    assert process.returncode == INTERRUPTED, text
    data = json.loads(out)
    assert data["interrupted"]
    assert data["ended"] > 0
    before, _, after = text.rpartition("\x1b[?25h")  # shows the cursor
    assert "\x1b[?25l" in before
    assert after.strip() == ""  # and nothing hides it again
    assert f"{data['arrived']} arrived, {data['ended']} succeeded" in before.rpartition("requests ")[2]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # no process has it open any more
        return b""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--live",), "--live is about requests that arrive at a rate: give --rate as well"),
        (("--metrics-port", 0), "--metrics-port is about requests that arrive at a rate"),
        (("--requests", 5, "--live"), "--live is about requests that arrive at a rate"),
        (("--rate", 1, "--metrics-port", -1), "Invalid value for '--metrics-port'"),
        (("--rate", 1, "--metrics-port", 65536), "Invalid value for '--metrics-port'"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(
    cli: Any, tiny: Path, placement: Path, options: Sequence[object], said: str
) -> None:
    result = cli("run", tiny, "-p", placement, *options)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_port_that_is_taken_and_an_extra_that_is_missing_are_said_before_any_work(
    cli: Any, tmp_path: Path, placement: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = tmp_path / "none.onnx"  # what is to be worked on

    def said(port: int) -> str:
        result = cli("run", nothing, "-p", placement, "--rate", 1, "--metrics-port", port)
        assert result.exit_code == 2
        return str(result.stderr)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert said(port).startswith(f"error: Metrics cannot be served on port {port}: Address already in use.")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert said(0) == (
        "error: A page of metrics needs prometheus-client, which is not installed: pip install 'placeit[metrics]'\n"
    )
