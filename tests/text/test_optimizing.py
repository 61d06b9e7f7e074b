"""The settings with which texts are generated fastest: what is tried, what is chosen, and what its file keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit import Candidates, Constraints, Inputs, Session
from placeit.core.errors import ExecutionError, PlacementError, UsageError
from placeit.core.placement import Placement, Serving
from placeit.text import optimizing
from placeit.text.generating import TextModel, Wanted
from placeit.text.optimized import TextsOptimized
from placeit.text.optimizing import optimize_texts
from tests.schema_check import check_schema
from tests.small_texts import write_folder

CONTEXT, TEXTS = 140, 3

pytestmark = pytest.mark.two_cores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


def opened(folder: Path, context: int = CONTEXT, texts: int = TEXTS) -> Session:
    return Session(folder, "CPU@0,CPU@1", inputs=Inputs(context=context), constraints=Constraints(texts=texts), cache=None)


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Session]:
    with opened(folder) as session:
        yield session


def placement(session: Session, parts: int) -> Placement:
    """Place the groups in order, an equal number on each device, as a segment of each."""
    part = np.arange(len(session.grouping.groups)) * parts // len(session.grouping.groups)
    return replace(session.placement(part), segments=part[session.grouping.group_of].astype(np.int32))


@pytest.fixture(scope="module")
def found(session: Session) -> TextsOptimized:
    return optimize_texts(session, placements={name: placement(session, parts) for name, parts in WAYS.items()}, budget=3)


WAYS = {"whole": 1, "halves": 2}


def test_a_split_is_tried_with_several_chunks_and_a_step_for_each_device(found: TextsOptimized) -> None:
    rows = {one.name: one.rows for one in found.settings}
    assert rows == {"whole": 3, **{f"halves, chunks of {chunk}": 2 for chunk in (64, 70)}}
    assert (found.texts, found.prompt) == (TEXTS, CONTEXT // 2)
    assert 1 <= found.tokens <= CONTEXT - found.prompt
    assert all(one.failed is None and one.placement.serving is not None for one in found.settings)


def test_every_speed_is_predicted_and_measured_and_the_error_is_given(found: TextsOptimized) -> None:
    for one in found.settings:
        assert None not in (one.predicted, one.predicted_first_s, one.first_s)
        assert one.predicted > 0
        assert one.tokens_per_s is not None
        assert one.measured is not None
        assert one.tokens_per_s == pytest.approx(1 / np.median(one.measured.samples))
        assert one.error == pytest.approx(one.predicted / one.tokens_per_s - 1)
        assert 0 < one.first_s < found.texts * found.tokens / min(1 / one.measured.samples)
        assert one.interval[0] <= one.tokens_per_s <= one.interval[1]
    assert found.error == pytest.approx(np.median([abs(one.error or 0) for one in found.settings]))
    speeds = [one.tokens_per_s or 0 for one in found.settings]
    assert speeds == sorted(speeds, reverse=True)


def test_a_split_is_the_answer_only_if_it_is_faster_beyond_the_interval(found: TextsOptimized) -> None:
    assert found.ratio is not None
    assert (found.chosen.of == "halves") == found.ratio.faster
    assert found.placement is found.chosen.placement
    assert "best single device" in found.reason
    files = {"placement_file": "p", "recording_file": None, "page_file": None}
    check_schema(json.loads(json.dumps(found.to_dict())) | {"schema": "placeit.tokens/1", **files}, "placeit.tokens/1")


def test_a_file_keeps_the_chunk_in_which_prompts_are_read(session: Session, found: TextsOptimized, tmp_path: Path) -> None:
    one = next(one for one in found.settings if one.name == "halves, chunks of 64")
    one.placement.save(tmp_path / "p.json")
    again = Placement.load(tmp_path / "p.json")
    assert again.serving == Serving(chunk=64)
    with session.serve(again) as server:
        model = TextModel(server, session.model, chunk=64)
        with server.sequence() as sequence:
            answers = model.read(sequence, [1] * CONTEXT, 0)
            assert len(answers) == -(-CONTEXT // 64)
            answers[-1].result()
        default = TextModel(server, session.model)
        assert (default.chunk, TextModel(server, session.model, chunk=10 * CONTEXT).chunk) == (128, CONTEXT)
        texts = [list(each.generate([1] * 100, Wanted(3)))[-1].tokens for each in (model, default)]
        assert texts == [3, 3]


def test_a_placement_that_cannot_run_is_named_and_the_others_are_compared(session: Session) -> None:
    whole = placement(session, 1)
    other = replace(whole, op_names=tuple(f"not {name}" for name in whole.op_names), graph_hash="")
    found = optimize_texts(session, placements={"other": other, "whole": whole}, budget=0.2)
    assert (found.chosen.of, found.ratio) == ("whole", None)
    assert "nothing was compared" in found.reason
    (failed,) = (one for one in found.settings if one.failed is not None)
    assert (failed.of, failed.tokens_per_s, failed.error) == ("other", None, None)
    with pytest.raises(ExecutionError, match=r"No placement can generate texts\. other: "):
        optimize_texts(session, placements={"other": other}, budget=0.2)


def test_a_device_that_fails_while_texts_are_generated_leaves_the_others(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, calls = TextModel.generate_all, list[TextModel]()

    def failing(model: TextModel, *args: Any, **options: Any) -> Any:
        calls.append(model)
        if len({*map(id, calls)}) > 1 and model is not calls[0] and calls.count(model) > 2:
            raise ExecutionError("put in")
        return generate(model, *args, **options)

    monkeypatch.setattr(TextModel, "generate_all", failing)
    found = optimize_texts(session, placements={name: placement(session, 1) for name in ("one", "two")}, budget=0.2)
    assert [one.failed for one in found.settings if one.of == "two"] == ["A run of 'two' failed: put in"]
    assert found.chosen.of == "one"


def test_a_placement_to_start_from_is_tried_whatever_the_search_finds(folder: Path) -> None:
    with opened(folder) as session:
        start = replace(placement(session, 2), segments=None)
        candidates = Candidates([], start=start)
        found = optimize_texts(session, budget=2, candidates=candidates)
    assert "start" in {one.of for one in found.settings}
    assert {one.of for one in found.settings} >= {"CPU"}


def test_settings_for_which_there_was_no_turn_have_no_times(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizing, "_MAX_SETTINGS", 2)
    found = optimize_texts(session, placements={name: placement(session, parts) for name, parts in WAYS.items()}, budget=0.2)
    (left_out,) = (one for one in found.settings if one.measured is None)
    assert (left_out.of, left_out.first_s, left_out.tokens_per_s, left_out.failed) == ("halves", None, None, None)
    assert found.settings[-1] is left_out


@pytest.mark.parametrize(
    ("options", "message"), [({"budget": "soon"}, "soon"), ({"budget": 0}, "must be positive"), ({"budget": -1}, "positive")]
)
def test_budgets_that_are_none_are_refused(session: Session, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        optimize_texts(session, **options)


@pytest.mark.parametrize("chunk", [0, -1, "many"])
def test_a_file_with_other_chunks_is_no_placement(session: Session, chunk: Any) -> None:
    data = placement(session, 1).to_dict() | {"serving": {"chunk": chunk}}
    with pytest.raises(PlacementError, match="'serving' has 'in_flight' and 'chunk', at least 1"):
        Placement.from_dict(data, "p.json")
