"""Runs of placements that a search keeps beside the cost cache, for the next search of the same on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.optimizer.journal import kept_journal
from placeit.optimizer.options import Budget, Candidates
from placeit.optimizer.result import Optimized
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.simulator.objectives.latency import Latency
from tests.small_models import inception_like
from tests.steady import STEADY, optimize


def emulated() -> Cluster:
    cores = (allowed_cores()[0],)
    links = {pair: Link(1e9, 1e-5, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    return Cluster(
        (Device("fast", address=Address("CPU", cores)), Device("slow", address=Address("CPU", cores), slowdown=1.5)), links
    )


def found(cache: Cache | None, **options: Any) -> Optimized:
    return optimize(
        inception_like(), emulated(), budget=options.pop("budget", 4), candidates=Candidates(("heft", "metis")), cache=cache
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Optimized]:
    """The folder of a cache, and the first search with it."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, found(Cache(folder))


@pytest.fixture
def folder(kept: tuple[Path, Optimized], tmp_path: Path) -> Path:
    """A copy of that folder."""
    for path in kept[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def runs(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs-*.jsonl"))


def test_the_next_search_knows_what_the_first_one_measured(kept: tuple[Path, Optimized], folder: Path) -> None:
    again = found(Cache(folder))
    first = {one.groups.tobytes() for one in kept[1].candidates if one.measured is not None and len(one.measured.samples) >= 6}
    assert first
    assert first <= {one.groups.tobytes() for one in again.candidates}
    assert not any(one.earlier for one in kept[1].candidates)
    assert any(one.earlier or one.measured is not None for one in again.candidates if one.groups.tobytes() in first)
    assert again.chosen.measured is not None
    assert not again.chosen.earlier  # it was decided about anew
    assert len(runs(folder)) == 1


def test_costs_that_are_profiled_anew_begin_another_file(folder: Path) -> None:
    (old,) = runs(folder)
    for path in folder.glob("*.json"):
        path.unlink()
    again = found(Cache(folder))
    assert not any(one.earlier for one in again.candidates)
    assert len(runs(folder)) == 2
    assert old in runs(folder)


@pytest.mark.parametrize("cache", [None, "elsewhere"])
def test_nothing_is_kept_where_nobody_wants_it(cache: str | None, tmp_path: Path) -> None:
    found(None if cache is None else Cache(tmp_path, runs=False))
    assert runs(tmp_path) == []


def _lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")

    return damage


def _head(**fields: Any) -> Callable[[Path], None]:
    return _lines(lambda lines: [json.dumps(json.loads(lines[0]) | fields), *lines[1:]])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_lines(lambda lines: [lines[0], "{", *lines[1:]]), "line 2 is damaged"),
        (_lines(lambda lines: [lines[0], '{"name": "x"}']), "line 2 is damaged"),
        (_lines(lambda _: ["\x00\x01 nothing that was ever written"]), "not a file that a search can be resumed from"),
        (_head(version=99), "has version 99"),
        (_head(digest="of another machine"), "measurements of another search"),
        (_head(devices="CPU@7"), "its devices is 'CPU@7'"),
        (_folder, "not a regular file"),
    ],
)
def test_a_file_that_cannot_be_used_is_set_aside(
    folder: Path, damage: Callable[[Path], None], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = runs(folder)
    damage(path)
    with Session(inception_like(), emulated(), cache=Cache(folder), policy=STEADY) as session:
        again = session.optimize(budget=4, candidates=Candidates(("heft",)))
    assert again.chosen.measured is not None
    assert not any(one.earlier for one in again.candidates)
    (told,) = [record.getMessage() for record in caplog.records if "Runs of" in record.getMessage()]
    assert says in told
    assert f"{path.name}.damaged" in told
    assert (folder / f"{path.name}.damaged").exists()
    assert json.loads(path.read_text().splitlines()[0])["format"] == "placeit-search"


def test_a_file_that_cannot_be_written_is_kept_no_longer(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placeit.optimizer.journal.os.fsync", _full)
    assert found(Cache(folder)).chosen.measured is not None
    assert sum("Runs of placements are not kept" in record.getMessage() for record in caplog.records) == 1


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_that_was_asked_for_takes_its_place(folder: Path, tmp_path: Path) -> None:
    (path,) = runs(folder)
    before = path.read_bytes()
    again = found(Cache(folder), budget=Budget(4, tmp_path / "search.jsonl"))
    assert not any(one.earlier for one in again.candidates)
    assert path.read_bytes() == before


def test_clearing_the_cache_deletes_runs(folder: Path) -> None:
    costs = len(list(folder.glob("*.json")))
    assert Cache(folder).clear() == costs
    assert runs(folder) == []


def test_a_few_runs_beside_an_anchor_count_and_fewer_do_not(folder: Path) -> None:
    (path,) = runs(folder)
    head, *lines = path.read_text().splitlines()
    records = {json.dumps(record["devices"]): record for record in map(json.loads, lines) if record["cost"] is not None}
    few, fewer = list(records.values())[:2]
    cut = [one | {what: one[what][:count] for what in ("samples", "values")} for one, count in ((few, 3), (fewer, 2))]
    path.write_text("\n".join([head, *map(json.dumps, cut)]) + "\n")
    with Session(inception_like(), emulated(), cache=Cache(folder), policy=STEADY) as session:
        session.profile()
        search = Search(RunOptions(session, Latency(), 1e9))
        journal = kept_journal(session, Latency())
        assert journal is not None
        search.resume(journal)
        known = {str(one.groups.tolist()): one.earlier for one in search.candidates}
    assert known == {str(few["devices"]): True, str(fewer["devices"]): False}
