"""The story of a search: its stages, what each reads and writes, and the states that its events lead to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placeit import Budget, Candidates, Session
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.jsonable import jsonable_dict
from placeit.devices.host import allowed_cores
from placeit.optimizer.optimize import STAGES, follow
from placeit.optimizer.options import Goal
from placeit.optimizer.search_state import SearchState
from placeit.optimizer.story import Event, events_of, replay
from placeit.profiler.cache import Cache
from placeit.profiler.recording import read_recording, write_recording
from placeit.report import as_json
from placeit.runtime.programs import searching
from tests.recorded_run import RECORDING
from tests.small_models import inception_like

CORE = f"CPU@{allowed_cores()[0]}"
LINKS = {pair: Link(1e9, 1e-5, "described") for pair in (("a", "b"), ("b", "a"))}
FIGURES: dict[str, Any] = {"kind": "described", "flops_per_s": 1e9, "bytes_per_s": 1e9}
DESCRIBED = Cluster((Device("a", **FIGURES), Device("b", **FIGURES)), LINKS)


def state_of(session: Session, seconds: float = 5.0) -> SearchState:
    return SearchState(session, Goal(session.cluster, "latency", Budget(seconds), Candidates("heft"), 0, None))


@pytest.mark.parametrize("devices", [CORE, DESCRIBED], ids=["measured", "simulated"])
def test_the_events_of_a_search_lead_to_the_states_that_its_candidates_have(devices: str | Cluster, cache: Cache) -> None:
    with Session(inception_like(), devices, cache=cache) as session, searching():
        state = state_of(session)
        found = follow(state)
        final = {name: one.state.to_dict() for name, one in state.search.known.items()}
    assert final == replay(found.story)
    assert {one.name for one in found.candidates} <= final.keys()
    assert final[found.chosen.name]["kind"] == ("proposed" if devices is DESCRIBED else "measured")
    assert [one.stage for one in found.story if one.what == "stage begins"] == [stage.name for stage in STAGES]
    assert [one.candidate for one in found.story if one.what == "chosen"] == [found.chosen.name]
    assert found.story[-1].reason == found.reason
    times = [one.at_s for one in found.story]
    assert times == sorted(times)


def test_a_story_in_a_file_replays_to_the_same_states(cache: Cache, tmp_path: Path) -> None:
    with Session(inception_like(), DESCRIBED, cache=cache) as session:
        found = session.optimize(candidates=Candidates("heft"), budget=2)
    write_recording(tmp_path / "run.json", RECORDING.__class__(**{**vars(RECORDING), "search": as_json.search(found)}))
    search = read_recording(tmp_path / "run.json").search
    assert search is not None
    assert replay(events_of(search["story"])) == jsonable_dict(dict(replay(found.story)))
    assert events_of(None) == events_of("no list") == events_of([1, {"what": "measured"}]) == []


def test_replaying_changes_nothing_that_it_is_given() -> None:
    first = replay([Event(0.0, "enter", "proposed", "a", None, {"kind": "proposed"})])
    assert first == {"a": {"kind": "proposed"}}
    assert replay([]) == {}


class Watched(SearchState):
    """A state that notes which of its results are read and written."""

    def __init__(self, *arguments: Any) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        super().__init__(*arguments)

    def __getattribute__(self, name: str) -> Any:
        noted = object.__getattribute__(self, "__dict__").get("read")
        if noted is not None:
            noted.add(name)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        noted = object.__getattribute__(self, "__dict__").get("written")
        if noted is not None:
            noted.add(name)
        object.__setattr__(self, name, value)


GIVEN = {"session", "goal", "progress", "ledger", "story", "read", "written", "__dict__", "__class__"}
"""What every stage may use."""


def test_a_stage_reads_and_writes_what_it_says(cache: Cache) -> None:
    with Session(inception_like(), DESCRIBED, cache=cache) as session, searching():
        goal = Goal(session.cluster, "latency", Budget(5), Candidates("heft", compare_precisions=True), 0, None)
        state = Watched(session, goal)
        for stage in STAGES:
            for noted in (state.read, state.written):
                noted.clear()
            stage.run(state)
            read, written = set(state.read) - GIVEN, set(state.written) - GIVEN
            assert read <= {*stage.reads}, stage.name
            assert written <= {*stage.writes}, stage.name
    assert json.dumps(state.result.to_dict())
