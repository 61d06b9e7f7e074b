"""The live view of a server: what it shows, on terminals of any width and elsewhere, and that it leaves them in order."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from placeit.backends import load
from placeit.report import live
from placeit.report.live import LiveView
from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.spans import Event
from placeit.serving.server import Server
from placeit.serving.stats import OUTCOMES, ServerStats
from tests.runtime.test_faults import inputs_of, save_mixing
from tests.serving.test_adapting import Bench

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def stats(at: float, *devices: DeviceStats, events: Sequence[Event] = (), **outcomes: int) -> ServerStats:
    counts = dict.fromkeys(OUTCOMES, 0) | outcomes
    return ServerStats(at, counts, 3, 64, 2, 0.0, np.array([1e-3, 2e-3, 3e-3]), 0, devices, tuple(events))


def shown(*looks: ServerStats, width: int = 80) -> LiveView:
    """A view that has looked so often."""
    reads = iter(looks)
    view = LiveView(lambda: next(reads), Console(file=io.StringIO(), width=width))
    for _ in looks[1:]:
        view.refresh()
    return view


def lines_of(view: LiveView) -> list[str]:
    return [line.rstrip() for line in view.render().plain.splitlines() if line.strip("─") or not line]


NODES = (
    DeviceStats("CPU@0", busy_s=1.0),
    DeviceStats("edge/CPU@0", "edge", busy_s=0.5),
    DeviceStats("edge/CPU@1", "edge", up=False, returns=1, busy_s=0.0),
    DeviceStats("far/GPU", "far", returns=1),
)
LATER = (replace(NODES[0], busy_s=2.0), replace(NODES[1], busy_s=2.5), *NODES[2:])
EVENTS = (
    Event("lost", 1.0, 1.0, "far/GPU is lost: its process has ended."),
    Event("decision", 1.5, 1.5, "CPU@0"),
    Event("news", 9.0, 9.0, "far/GPU is back."),
)


def test_the_view_has_sequences_if_there_are_any() -> None:
    now = replace(stats(6.0), sequences=3, state_bytes=123_456_789)
    assert "sequences   3 open, 123 MB of state" in lines_of(shown(now))


def test_the_view_has_requests_rates_devices_nodes_and_what_happened() -> None:
    first = stats(6.0, *NODES, succeeded=100)
    last = stats(8.0, *LATER, events=EVENTS[:2], succeeded=300, failed=1, expired=4, refused=7)
    assert lines_of(shown(first, last)) == [
        "requests    317 arrived, 300 succeeded, 1 failed, 4 expired, 7 refused",
        "throughput  100 per second",
        "latency     p50 2.00 ms, p95 2.90 ms, p99 2.98 ms",
        "queue       3 of 64 waiting, 2 in flight",
        "",
        "device        state                  busy",
        "this machine  1 of 1 devices up      50 %  ##########..........",
        "  CPU@0       up                     50 %  ##########..........",
        "edge          1 of 2 devices up      50 %  ##########..........",
        "  edge/CPU@0  up                    100 %  ####################",
        "  edge/CPU@1  lost, 2 times so far  0.0 %  ....................",
        "far           1 of 1 devices up     0.0 %  ....................",
        "  far/GPU     back                  0.0 %  ....................",
        "",
        "7 s ago  far/GPU is lost: its process has ended.",
    ]
    assert "".join(lines_of(shown(stats(10.0, events=EVENTS)))[-2:]).endswith("1 s ago  far/GPU is back.")


def test_rates_are_of_the_last_seconds_and_there_are_none_at_first() -> None:
    counts = (0, 10, 20, 30, 130, 230)
    looks = [stats(2.0 * number, succeeded=count) for number, count in enumerate(counts)]
    assert "throughput  - per second" in lines_of(shown(looks[0]))
    assert "throughput  5 per second" in lines_of(shown(*looks[:4]))
    assert "throughput  35 per second" in lines_of(shown(*looks))  # from 4 s on, when there were 20


@pytest.mark.parametrize("width", [40, 80])
def test_nothing_is_wider_than_the_terminal_and_everything_is_there(width: int) -> None:
    view = shown(stats(6.0, *NODES), stats(10.0, *LATER, events=EVENTS, succeeded=300, failed=1, expired=4), width=width)
    text = "\n".join(lines_of(view))
    console = Console(file=io.StringIO(), width=width)
    rendered = console.render_lines(view.render(), console.options)
    assert max(sum(cell_len(part.text) for part in line) for line in rendered) <= width
    assert all(cell_len(line) <= width for line in text.splitlines())
    for what in ("310 arrived", "4 expired", "p99", "64 waiting", "edge/CPU@1", "lost, 2 times so far", "far/GPU is back."):
        assert what in " ".join(text.split())


def test_names_and_reasons_are_shown_as_they_are_whatever_is_in_them() -> None:
    name = "[red]x[/red] [/] :fire: \x1b[31m" + "y" * 60
    events = [Event("lost", 0.0, 0.0, f"{name} is lost: [bold]why[/bold]")]
    for width in (40, 80):
        view = shown(stats(1.0, DeviceStats(name, up=False), events=events), width=width)
        text = "".join(view.render().plain.split())
        assert "[red]x[/red][/]:fire:?[31m" in text.replace("─", "")
        assert "[bold]why[/bold]" in text
        assert "\x1b" not in view.render().plain + view.line()
        assert "[red]x[/red]" in view.line()


def test_the_line_has_everything_that_the_view_has() -> None:
    view = shown(stats(6.0, *NODES), stats(8.0, *LATER, succeeded=200, refused=7))
    assert view.line() == (
        "2 s: requests 212 arrived, 200 succeeded, 0 failed, 7 refused; throughput 100 per second; latency p50 2.00 ms, "
        "p95 2.90 ms, p99 2.98 ms; queue 3 of 64 waiting, 2 in flight; busy CPU@0 50 %, edge/CPU@0 100 %, far/GPU 0.0 %; "
        "lost edge/CPU@1"
    )


def test_elsewhere_than_on_a_terminal_each_look_is_a_line() -> None:
    out = io.StringIO()
    view = LiveView(lambda: stats(1.0, *NODES), Console(file=out, width=40))
    for count in (1, 2):
        view.refresh()
        assert out.getvalue() == f"{view.line()}\n" * count
    view.close()
    assert out.getvalue() == f"{view.line()}\n" * 2  # it had not begun


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def served(tmp_path: Path) -> Iterator[tuple[Bench, Server]]:
    made = Bench(load(save_mixing(tmp_path / "mixing.onnx")))
    with made.runtime, Server([made.runtime.executor(made.plan(1))]) as server:
        yield made, server


def test_a_terminal_shows_a_lost_device_that_comes_back_and_is_left_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_REFRESH_S", 1e6)  # this test refreshes
    out = _Terminal()
    with served(tmp_path) as (made, server):
        view = LiveView(server.stats, Console(file=out, force_terminal=True, width=80, height=30))
        server.watch(view)
        view.start()
        assert server.submit(inputs_of(made.model, 1)).exception(60) is None
        view.refresh()
        assert "1 arrived, 1 succeeded" in view.render().plain
        made.device(0).lose()
        view.refresh()
        assert " ".join(view.render().plain.split()).find("a lost 0.0 %") > 0
        made.device(0).there = True
        made.runtime.pool.reopen()
        view.refresh()
        assert " ".join(view.render().plain.split()).find("a back 0.0 %") > 0
        assert (out.getvalue().count(HIDE), out.getvalue().count(SHOW)) == (1, 0)
        assert server.submit(inputs_of(made.model, 1)).exception(60) is None
    assert out.getvalue().endswith(f"\n{SHOW}")  # the server has closed it
    assert "2 arrived, 2 succeeded" in Text.from_ansi(out.getvalue()).plain.rpartition("requests")[2]
    before = out.getvalue()
    view.close()
    assert out.getvalue() == before


def test_ctrl_c_ends_the_view_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "_LINE_S", 1e6)
    before = sys.stdout, sys.stderr
    with served(tmp_path) as (made, server):
        assert server.submit(inputs_of(made.model, 1)).exception(60) is None
        with pytest.raises(KeyboardInterrupt), server.live():
            raise KeyboardInterrupt
        assert server.submit(inputs_of(made.model, 1)).exception(60) is None
    assert (sys.stdout, sys.stderr) == before
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert "1 arrived, 1 succeeded" in error


def test_a_view_that_nobody_reads_any_more_disturbs_nobody() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    view = LiveView(lambda: stats(1.0), Console(file=Gone()))
    view.start()
    view.refresh()
    view.close()
    assert view.render().plain.startswith("requests")
