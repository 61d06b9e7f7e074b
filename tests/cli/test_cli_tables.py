"""Tables as people see them: one race each, and readable on a narrow terminal."""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from placeit.measuring.statistics import summed_up
from placeit.optimizer.candidate_state import Ran
from placeit.optimizer.candidates import RaceResult
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized
from placeit.profiler.cache import Cache
from placeit.report import as_text, text
from tests.steady import optimize

pytestmark = pytest.mark.usefixtures("steady")

HEADS = ("candidate", "devices (ops)", "segments", "measured", "speed-up over CPU@0")
ROWS = [
    ("calibrated-search 1 (segment-search) *", "CPU@0 179, CPU@1 146", "45", "81.9 ms", "1.33"),
    ("CPU@0 (single)", "CPU@0 325", "1", "109 ms", "1.00"),
]


def printed(width: int, rows: Sequence[Sequence[str]] = ROWS, *, terminal: bool = True, **options: Any) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=terminal, color_system=None, markup=False, soft_wrap=True)
    text.tables(console, HEADS, {"race 1": rows}, left=2, **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_table_with_room_has_a_line_for_each_row() -> None:
    lines = printed(200).splitlines()
    assert lines[0] == "race 1"
    assert lines[1].split("  ")[0] == "candidate"
    assert len(lines) == 5
    assert lines[3].split() == " ".join(ROWS[0]).split()


def test_columns_that_can_be_spared_are_left_out_first_and_said_to_be() -> None:
    shown = printed(75, spare=["segments", "speed-up over CPU@0"])
    assert "segments" not in shown.partition("(--wide")[0]
    assert "speed-up" in shown
    assert "(--wide shows segments, too)" in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_without_spare_columns_loses_those_on_the_right_rather_than_a_line(*, terminal: bool) -> None:
    columns = [f"cut CPU@{core}" for core in range(20)]
    console = Console(width=80, file=io.StringIO(), force_terminal=terminal, color_system=None, markup=False, soft_wrap=True)
    text.table(console, ["group", *columns], [["conv1", *["1.23 ms"] * 20], ["conv2", *["1.23 ms"] * 20]])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split("  ")[0] for line in lines if line.startswith(("group", "conv"))] == ["group", "conv1", "conv2"]
    assert "cut CPU@19, too)" in " ".join(lines)


def test_text_is_broken_between_words_before_a_table_is_stacked() -> None:
    lines = [re.split(" {2,}", line.strip()) for line in printed(75).splitlines()]
    assert [line[0] for line in lines[-3:]] == ["calibrated-search 1", "(segment-search) *", "CPU@0 (single)"]
    assert lines[1] == ["speed-up"]


def test_a_table_without_room_is_stacked() -> None:
    lines = printed(40).splitlines()
    assert lines[1] == "calibrated-search 1 (segment-search) *"
    assert "  measured             81.9 ms" in lines
    assert "CPU@0 (single)" in lines


WORDS = st.lists(st.text("ab12", min_size=1, max_size=10), max_size=5).map(" ".join)


@given(
    st.integers(48, 160), st.lists(st.tuples(WORDS, WORDS, *[st.text("0123456789", max_size=8)] * 3), min_size=1, max_size=4)
)
def test_no_line_is_longer_than_the_terminal_and_no_word_is_lost(width: int, rows: list[tuple[str, ...]]) -> None:
    shown = printed(width, rows)
    assert all(len(line) <= width for line in shown.splitlines())
    assert all(word in shown for row in rows for cell in row for word in cell.split())


@given(
    st.integers(70, 160), st.lists(st.tuples(WORDS, WORDS, *[st.text("0123456789", max_size=8)] * 3), min_size=1, max_size=4)
)
def test_in_a_pipe_a_row_is_a_line_of_fields_with_two_spaces_between(width: int, rows: list[tuple[str, ...]]) -> None:
    title, heads, *lines = printed(width, rows, terminal=False, spare=["segments"]).splitlines()
    columns = re.split(" {2,}", heads)
    assert title == "race 1"
    assert columns[0] == "candidate"
    assert all(len(re.split(" {2,}", line.strip())) == len(columns) for line in lines[: len(rows)])
    assert all(len(line) <= width for line in lines)
    assert len(lines) == len(rows) or lines[len(rows)].startswith("(--wide shows ")


def test_in_a_pipe_no_cell_divides_its_row() -> None:
    lines = printed(100, [("a\nb   c", "", "1", " ", "2")], terminal=False).splitlines()
    assert re.split(" {2,}", lines[2]) == ["a b c", "-", "1", "-", "2"]


def sections(shown: str) -> dict[str, str]:
    """Tables of a report by the first words of their titles."""
    parts = re.split(r"^(race \d+|not measured|failed|chosen|time went into)\b", shown, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def command(cli: Any, tiny: Path, cores: Sequence[str]) -> tuple[Any, ...]:
    return (cli, "optimize", tiny, "-d", ",".join(cores), "--budget", "2", "--placer", "heft", "-o", "p.json")


def run(cli: Any, *args: object) -> Any:
    result = cli(*args)
    assert result.exit_code == 0, result.stderr
    return result


def test_a_report_has_a_table_for_each_race(command: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    def noted(self: Optimized) -> Any:
        found.update(answer := to_dict(self))
        return answer

    to_dict = Optimized.to_dict
    monkeypatch.setattr(Optimized, "to_dict", noted)
    tables = sections(run(*command).stdout)
    measured = [candidate for candidate in found["candidates"] if candidate["measured_s"] is not None]
    assert measured
    for candidate in measured:
        table = tables[f"race {candidate['race'] + 1}"]
        assert f"\n{candidate['name']} " in table
        assert candidate["name"] in found["races"][candidate["race"]]["candidates"]
        assert text.seconds(candidate["measured_s"]) in table
    numbers = [candidate["race"] for candidate in measured]
    assert numbers == sorted(numbers, reverse=True)


def test_a_time_of_an_earlier_race_is_not_beside_those_of_the_last_one(
    tiny: Path, cores: Sequence[str], cost_cache: Path, tmp_path: Path
) -> None:
    """The machine has become slower in the meantime: what was chosen takes longer than what lost to it in a race before."""
    found = optimize(tiny, cores[0], candidates=Candidates(placers=["heft"]), budget=1.0, cache=Cache(cost_cache))
    races = {
        when: [summed_up(name, [seconds] * 9, range(9)) for name, seconds in times.items()]
        for when, times in {"then": {"a": 1.7, "b": 1.45}, "now": {"a": 1.68, "c": 1.8}}.items()
    }
    a, b = (
        replace(found.chosen, name=name, state=Ran(measured, measured, race=race))
        for name, measured, race in (("a", races["now"][0], 1), ("b", races["then"][1], 0))
    )
    records = tuple(RaceResult(when, 9, {one.name: one for one in ones}) for when, ones in races.items())
    found = replace(found, chosen=a, best_single=a, candidates=(a, b), races=records)
    console = Console(width=200, file=io.StringIO(), markup=False, highlight=False, soft_wrap=True)
    as_text.optimized(console, found, tmp_path / "p.json")
    assert isinstance(console.file, io.StringIO)
    tables = sections(console.file.getvalue())
    assert "1.68 s" in tables["race 2"]
    assert "1.45 s" not in tables["race 2"]
    assert tables["race 1"].startswith(": then, 9 rounds, earlier; times are not comparable with those above")
    assert "1.45 s" in tables["race 1"]
    assert "1.17" in tables["race 1"]  # over a, in the same race


@pytest.mark.parametrize(
    ("earlier", "title"), [(True, "measured by an earlier search"), (False, "run one after the other, because time was short")]
)
def test_what_was_measured_outside_of_a_race_says_where(
    tiny: Path, cores: Sequence[str], cost_cache: Path, tmp_path: Path, *, earlier: bool, title: str
) -> None:
    found = optimize(tiny, cores[0], candidates=Candidates(placers=["heft"]), budget=1.0, cache=Cache(cost_cache))
    assert found.chosen.runs is not None
    alone = replace(found.chosen, state=replace(found.chosen.runs, race=None, earlier=earlier))
    found = replace(found, chosen=alone, best_single=alone, candidates=(alone,), races=())
    console = Console(width=200, file=io.StringIO(), markup=False, highlight=False, soft_wrap=True)
    as_text.optimized(console, found, tmp_path / "p.json")
    assert isinstance(console.file, io.StringIO)
    assert f"\n{title}" in console.file.getvalue()


def test_nothing_is_said_to_be_measured_on_described_devices(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "devices: {a: {catalog: jetson-orin-nano}, b: {catalog: raspberry-pi-5}}\n"
        "default_link: {bandwidth: 1 Gbit/s, latency: 1 ms}\n"
    )
    command = (cli, "optimize", tiny, "-d", cluster, "--budget", "20", "--placer", "heft")
    shown = run(*command).stdout
    assert "ignoring cut costs, by the figures of the described devices" in shown
    assert "costs measured" not in shown
    assert "\nsimulator" not in shown
    assert "\nspeed-up" not in shown
    assert list(sections(shown)) == ["chosen", "not measured", "time went into"]
    assert json.loads(run(*command, "--json").stdout)["races"] == []
