"""Results show themselves: tables for pandas and for notebooks, a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placeit
from placeit.core import extras
from placeit.core.errors import UsageError
from placeit.profiler.profile_report import ProfileReport
from placeit.profiler.recording import Recording
from tests.cli.conftest import make_tiny
from tests.report.made_recordings import a_recording, a_search
from tests.steady import STEADY

NAMES = {0: "<b>$x_1$</b>", 1: "\x1b[31m"}


@pytest.fixture(scope="module")
def recording() -> Recording:
    return replace(a_recording(names=NAMES), search=a_search())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "tiny.onnx", batch=1)


@pytest.fixture(scope="module")
def found(tiny: Path) -> placeit.Optimized:
    return placeit.optimize(
        tiny, devices="CPU@0,CPU@1", budget=1, candidates=placeit.Candidates(("heft",)), cache=None, policy=STEADY
    )


def test_a_recording_is_a_table_of_its_ops_the_most_expensive_first(recording: Recording) -> None:
    table = recording.to_dataframe()
    assert len(table) == 41  # with a kernel that stands for no op
    assert table.measured_s.is_monotonic_decreasing
    assert set(table.device) == {"CPU@0", "CPU@1"}


def test_names_in_a_notebook_are_text(recording: Recording) -> None:
    first = replace(recording.ops[0], measured_s=1.0)
    shown = replace(recording, ops=(first, *recording.ops[1:]))._repr_html_()
    assert "&lt;b&gt;$x_1$&lt;/b&gt;" in shown
    assert "<b>" not in shown


def test_headings_in_a_notebook_leave_out_the_unit_of_times_but_not_of_rates(recording: Recording) -> None:
    shown = recording._repr_html_()
    assert "<th>measured</th>" in shown
    assert "<th>flops per s</th>" in shown


@pytest.mark.two_cores
def test_a_search_shows_its_candidates_and_runs_its_answer_to_be_drawn(found: placeit.Optimized, tmp_path: Path) -> None:
    table = found.to_dataframe()
    assert list(table.name) == [one.name for one in found.candidates]
    assert list(table.name[table.chosen]) == [found.chosen.name]
    assert f"{found.chosen.name} is chosen" in found._repr_html_()
    assert len(found.recorded.graph.ops) == found.ops
    page = tmp_path / "page.html"
    found.report(page)
    assert f"{found.chosen.name} is chosen" in page.read_text(encoding="utf-8")


@pytest.mark.two_cores
def test_runs_profiles_and_comparisons_are_tables(tiny: Path) -> None:
    with placeit.Session(tiny, "CPU@0,CPU@1", cache=None, policy=STEADY) as session:
        costs = session.profile()
        profile = ProfileReport("tiny", session.precision, session.grouping, costs, {})
        placement = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        run = session.run(placement, runs=2)
    assert list(profile.to_dataframe().columns) == ["group", "kind", "ops", "device", "measured_s", "cut_s", "load_s"]
    assert len(profile.to_dataframe()) == 2 * len(session.grouping.groups)
    assert list(run.to_dataframe().device) == ["CPU@0"] * len(run.segment_s)
    assert "median of 2 runs" in run._repr_html_()
    assert "<table>" in profile._repr_html_()


def test_a_package_that_is_missing_is_an_error_that_says_how_to_install_it(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(extras, "import_module", absent)
    monkeypatch.setattr(extras, "installed", lambda module: module != "pandas")
    with pytest.raises(UsageError, match=r"needs pandas, which is not installed: pip install 'placeit\["):
        recording.to_dataframe()
