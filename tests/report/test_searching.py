"""The view of a search that runs."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from placeit.cli.terminal import Terminal
from placeit.devices.host import allowed_cores
from placeit.optimizer.story import Event
from placeit.report.searching import SearchView
from tests.cli.conftest import make_tiny
from tests.steady import optimize


def shown(view: SearchView, width: int = 80) -> dict[str, str]:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as text:
        console.print(view.render())
    lines = text.get().splitlines()
    assert all(len(line) <= width for line in lines)
    return {head.strip(): rest.strip() for head, _, rest in (line.partition("  ") for line in lines)}


def measured(name: str, cost: float) -> Event:
    return Event(2.0, "measure", "measured", name, None, {"kind": "measured", "value": 9.0, "cost": cost})


def test_the_view_names_the_best_what_is_measured_and_predicted_and_the_time_left() -> None:
    moment = 100.0
    view = SearchView(40.0, "s", lambda: moment)
    assert shown(view)["best so far"] == "nothing is measured yet"
    for name, value in (("heft", 0.012), ("metis", 0.011), ("annealing", 0.010)):
        view.event(Event(1.0, "propose", "proposed", name, "by it", {"kind": "proposed"}, value))
    view.event(Event(1.5, "measure", "race begins", None, "measuring 2 placements: heft, right"))
    view("measuring 2 placements", 0.5)
    view.event(measured("heft", 0.013))
    view.event(measured("right", 0.012))
    moment = 115.0
    assert shown(view) == {
        "best so far": "right 12.0 ms",
        "now": "[##########..........] measuring 2 placements",
        "measured now": "heft, right",
        "predicted": "annealing 10.0 ms, metis 11.0 ms",
        "time left": "25 s of 40 s",
    }


def test_a_candidate_that_failed_is_not_the_best_and_no_line_is_wider_than_the_terminal() -> None:
    view = SearchView(40.0, "s", lambda: 0.0)
    view.event(measured("[bold]" + "long" * 30, 0.02))
    view.event(measured("wrong", 0.01))
    view.event(Event(3.0, "measure", "failed", "wrong", "Its outputs differ.", {"kind": "failed", "reason": "wrong"}))
    view.event(Event(3.0, "measure", "race begins", None, "a race: " + "candidate, " * 30))
    view.event(Event(3.0, "measure", "race ends", None, "a race: 6 rounds"))
    lines = shown(view, width=60)
    assert lines["best so far"].startswith("[bold]long")
    assert lines["measured now"] == "-"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_search_is_shown_on_a_terminal_and_its_events_are_told_as_they_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Tty())
    model, cores = make_tiny(tmp_path / "tiny.onnx", batch=1), [f"CPU@{core}" for core in allowed_cores()[:2]]
    events: list[Event] = []
    with Terminal().search(1.0, "s") as view:
        assert isinstance(view, SearchView)
        found = optimize(model, cores, budget=1.0, cache=None, progress=view, on_event=events.append)
        for event in events:
            view.event(event)
    assert tuple(events) == found.story
    assert "best so far" in sys.stderr.getvalue()
