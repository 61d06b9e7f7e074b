"""Recordings as files: what is written is read, and what is not a recording is refused by a sentence that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placeit.core.errors import FileError
from placeit.profiler.recording import read_recording, write_recording
from tests.recorded_run import RECORDING


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_recording(tmp_path / "run.json", RECORDING)
    return tmp_path / "run.json"


def test_what_is_written_is_read(file: Path) -> None:
    assert read_recording(file) == RECORDING
    empty = replace(RECORDING, plan=None, spans=(), requests=(), states=(), link_use=(), critical_path=None, predicted=None)
    empty = replace(empty, ops=(), groups=(), samples=(), events=())
    write_recording(file, empty)
    assert read_recording(file) == empty


def _set(*where: str | int, to: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in where[:-1]:
            data = data[key]
        data[where[-1]] = to

    return change


def _drop(*where: str | int) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in where[:-1]:
            data = data[key]
        del data[where[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("wall_s", to=4.5), "'wall_s' was changed"),
        (_set("graph", "ops", 0, "kind", to="Pool"), "'graph' was changed"),
        (_set("spans", 1, "finish_s", to="soon"), "'spans[1].finish_s' must be a finite number"),
        (_set("spans", 1, "finish_s", to=True), "'spans[1].finish_s' must be a finite number"),
        (_set("spans", 1, "finish_s", to=10**400), "'spans[1].finish_s' must be a finite number"),
        (_set("search", "reason", to=float("nan")), "'search' holds a number that is not finite"),
        (_set("spans", 0, "finish_s", to=-1.0), "'spans[0].finish_s' must not be before 'start_s'"),
        (_set("spans", 0, "request", to=9), "'spans[0].request' is 9, and there are 1"),
        (_set("spans", 0, "segment", to=None), "'spans[0].segment' is missing"),
        (_set("spans", 0, "kind", to="nap"), "'spans[0].kind' must be one of compute, copy"),
        (_set("spans", 0, "where", to=["GPU.9"]), "'spans[0].where' names 'GPU.9', which is not among 'devices'"),
        (_set("spans", 0, "where", to=[]), "'spans[0].where' must name one device"),
        (_set("spans", to=None), "'spans' must be a list"),
        (_set("model", to=[]), "'model' must be an object"),
        (_set("devices", to=[]), "'devices' must have names that differ"),
        (_set("graph", "edges", 0, to=[1, 0, 8.0]), "'graph.edges[0]' is 1, and there are 0"),
        (_set("graph", "edges", 0, to=[0]), "'graph.edges[0]' must have 3 items"),
        (_set("graph", "ops", 1, "group", to=0.5), "'graph.ops[1].group' must be a whole number"),
        (_set("plan", "segments", 0, "runs", to="yes"), "'plan.segments[0].runs' must be true or false"),
        (_set("plan", "segments", 0, "ops", to=[77]), "'plan.segments[0].ops' is 77"),
        (_set("plan", "tensors", 0, "producer", to=77), "'plan.tensors[0]' is 77"),
        (_set("requests", 0, "ended_s", to=-3.0), "'requests[0]' must begin when it has arrived"),
        (_set("versions", "placeit", to=1), "'versions.placeit' must be text"),
        (_set("samples", 0, "values", to=[]), "'samples[0].values' must be as many as 'time_s'"),
        (_set("critical_path", "request", to=5), "'critical_path.request' is 5"),
        (_set("critical_path", "steps", 0, "span", to=5), "'critical_path.steps[0].span' is 5"),
        (_set("digests", to={}), "'made' was changed"),
        (_set("digests", to="none"), "'made' was changed"),
        (_set("colour", to="red"), "'colour' is not known"),
        (_drop("states"), "'states' is missing"),
        (_drop("model", "path"), "'model.path' is missing"),
        (_drop("digests"), "has no 'digests'"),
        (_drop("format"), "has no 'format'"),
        (_set("version", to=2), "has version 2; this placeit reads version 1"),
        (_set("format", to="placeit-placement"), "is not a placeit-recording file"),
    ],
)
def test_a_file_that_was_changed_is_refused_by_the_name_of_the_field(
    file: Path, change: Callable[[Any], None], said: str
) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    with pytest.raises(FileError, match=re.escape(said)) as error:
        read_recording(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_short_is_refused(file: Path, share: float) -> None:
    text = file.read_text().strip()
    file.write_text(text[: int(len(text) * share)])
    with pytest.raises(FileError, match="is not valid JSON"):
        read_recording(file)


def test_numbers_that_are_not_finite_are_refused(file: Path) -> None:
    file.write_text(file.read_text().replace('"wall_s": 4.0', '"wall_s": NaN'))
    with pytest.raises(FileError, match="'wall_s' must be a finite number"):
        read_recording(file)


@pytest.mark.parametrize("path", ["missing/run.json", "/dev/full", "."])
def test_where_nothing_can_be_written_an_error_says_so_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=f"Cannot write {re.escape(path)}"):
        write_recording(path, RECORDING)
    assert list(tmp_path.iterdir()) == []
