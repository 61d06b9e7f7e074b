"""Results show themselves: figures for papers, tables for pandas and for notebooks, a page."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import placeit
from placeit.core import extras
from placeit.core.errors import UsageError
from placeit.profiler.profile_report import ProfileReport
from placeit.profiler.recording import Recording
from tests.cli.conftest import make_tiny
from tests.report.made_recordings import a_front, a_recording, a_search
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


def drawn(figure: Figure, kind: str = "svg") -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format=kind)
    return stream.getvalue().decode("latin-1")


def texts(figure: Figure) -> str:
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_the_timeline_has_a_line_for_each_device_and_link_that_did_something(recording: Recording) -> None:
    figure = recording.plot_timeline()
    measured, single, simulated = figure.axes
    lines = [label.get_text() for label in measured.get_yticklabels()]
    assert lines == ["critical path", "CPU@0", "CPU@1", "CPU@0 → CPU@1", "CPU@1 → CPU@0"]
    assert [label.get_text() for label in single.get_yticklabels()] == ["CPU@0"]
    assert [label.get_text() for label in simulated.get_yticklabels()] == lines[1:]
    assert measured.get_xlim() == single.get_xlim() == simulated.get_xlim()


def test_the_states_of_a_device_fill_its_line(recording: Recording) -> None:
    (axis,) = recording.plot_utilization().axes
    for device in range(2):
        shares = [bar.get_width() for bars in axis.containers for bar in bars if round(bar.get_y() + 0.35) == -device]
        assert sum(shares) == pytest.approx(100)
        assert len(shares) == 6


def test_candidates_are_drawn_with_the_chosen_one_at_the_top(recording: Recording) -> None:
    (axis,) = recording.plot_candidates().axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["annealing *", "heft", "CPU@0", "random"]


def test_the_graph_shows_which_ops_are_on_which_device(recording: Recording) -> None:
    (axis,) = recording.plot_graph().axes
    assert {marks.get_label(): len(marks.get_offsets()) for marks in axis.collections} == {"CPU@0": 20, "CPU@1": 20}


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figures_are_written_in_the_formats_of_papers(recording: Recording, kind: str) -> None:
    assert drawn(recording.plot_timeline(), kind)[:8] in ("\x89PNG\r\n\x1a\n", "<?xml ve", "%PDF-1.4")


def test_a_front_is_a_line_with_a_mark_for_each_way_in_which_points_are_known(recording: Recording) -> None:
    figure = replace(recording, search=a_search() | {"pareto": a_front()}).plot_pareto()
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_legend().get_texts()] == [
        "measured, energy modelled",
        "measured",
        "simulated",
    ]
    assert axis.lines[0].get_xdata().tolist() == pytest.approx([16.1, 18.0, 20.5])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("latency, ms", "energy, J")
    with pytest.raises(UsageError, match="--pareto"):
        recording.plot_pareto()


def test_a_recording_without_a_run_says_what_is_missing() -> None:
    empty = replace(a_recording(), requests=(), spans=(), states=(), critical_path=None, predicted=None)
    with pytest.raises(UsageError, match="nothing ran"):
        empty.plot_timeline()
    with pytest.raises(UsageError, match="nothing ran"):
        empty.plot_utilization()
    with pytest.raises(UsageError, match="not of a search"):
        empty.plot_candidates()


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


@pytest.mark.two_cores
def test_a_search_shows_its_candidates_and_runs_its_answer_to_be_drawn(found: placeit.Optimized, tmp_path: Path) -> None:
    table = found.to_dataframe()
    assert list(table.name) == [one.name for one in found.candidates]
    assert list(table.name[table.chosen]) == [found.chosen.name]
    assert f"{found.chosen.name} is chosen" in found._repr_html_()
    assert found.chosen.name in texts(found.plot_candidates())
    assert "Measured" in texts(found.plot_timeline())
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


@pytest.mark.parametrize(("what", "missing"), [("plot_timeline", "matplotlib"), ("to_dataframe", "pandas")])
def test_a_package_that_is_missing_is_an_error_that_says_how_to_install_it(
    recording: Recording, what: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(extras, "import_module", absent)
    monkeypatch.setattr(extras, "installed", lambda module: module != missing)
    with pytest.raises(UsageError, match=rf"needs {missing}, which is not installed: pip install 'placeit\["):
        getattr(recording, what)()
