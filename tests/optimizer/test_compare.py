"""Comparisons from Python: what takes part, what they say, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import placeit
from placeit.core.cluster import Link
from placeit.core.errors import PlacementError, UsageError
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.session import Session
from tests.small_models import inception_like
from tests.steady import STEADY

CORE = f"CPU@{allowed_cores()[0]}"


@pytest.fixture
def session(cache: Cache) -> Iterator[Session]:
    one = placeit.discover(CORE).devices[0]
    links = {pair: Link(1e9, 1e-4, "emulated") for pair in (("a", "b"), ("b", "a"))}
    cluster = placeit.Cluster((replace(one, name="a"), replace(one, name="b", slowdown=3.0)), links)
    with Session(inception_like(), cluster, cache=cache, policy=STEADY) as opened:
        yield opened


def test_placements_race_against_every_single_device(session: Session) -> None:
    session.profile()
    split = session.placement(np.arange(len(session.grouping.groups)) % 2)
    found = placeit.compare(session, {"mine": split}, runs=6, warmup=1)
    by_name = {candidate.name: candidate for candidate in found.candidates}
    assert {"a", "b"} <= set(found.singles)
    assert set(by_name) == {*found.singles, "mine"}
    assert found.rounds == 6
    medians = [candidate.measured.median for candidate in found.candidates if candidate.measured is not None]
    assert medians == sorted(medians)
    assert len(medians) == len(by_name)
    for name in found.singles:
        ratio = found.speedups(by_name[name])[name]
        assert ratio is not None
        assert ratio.ratio == 1
    assert by_name["mine"].placement.as_dict() == split.as_dict()
    files = {row["name"]: row["placement_file"] for row in found.to_dict()["candidates"]}
    assert files == dict.fromkeys(found.singles) | {"mine": "mine"}


def test_a_file_of_a_placement_is_compared(session: Session, tmp_path: Path) -> None:
    session.profile()
    session.placement(np.arange(len(session.grouping.groups)) % 2).save(tmp_path / "mine.json")
    found = placeit.compare(session, {"mine": tmp_path / "mine.json"}, runs=1, warmup=1)
    assert "mine" in {candidate.name for candidate in found.candidates}


def test_what_cannot_be_compared_is_said(session: Session) -> None:
    groups = np.zeros(len(session.grouping.groups), np.int32)
    with pytest.raises(UsageError, match=r"takes a session that was profiled .*, not 'model.onnx'"):
        placeit.compare("model.onnx", {})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"call the session's profile\(\) first"):
        placeit.compare(session, {})
    session.profile()
    other = replace(session.placement(groups), graph_hash="another")
    with pytest.raises(PlacementError, match="mine: "):
        placeit.compare(session, {"mine": other}, runs=1)
    with pytest.raises(UsageError, match="must be at least one"):
        placeit.compare(session, {}, runs=0)
