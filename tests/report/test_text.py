import io
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from placeit.cli.terminal import Lines, Output, Terminal
from placeit.report import text


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.0468, "46.8 ms"), (25.14e-6, "25.1 us"), (1.0, "1.00 s"), (0.9999, "1.00 s"), (0, "0 s"), (None, "-")],
)
def test_times_have_three_digits_and_a_fitting_unit(seconds: float | None, written: str) -> None:
    assert text.seconds(seconds) == written


def test_times_of_a_column_have_one_unit() -> None:
    column = [0.0251, 0.00014, 0.0, None]
    assert [text.in_one_unit(column)(value) for value in column] == ["25.1 ms", "0.1 ms", "0.0 ms", "-"]
    assert text.in_one_unit([])(0.0) == "0 s"


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (5, "B", "5 B"),
        (999, "B", "999 B"),
        (1000, "B", "1.00 kB"),
        (7.75e9, "FLOP", "7.75 GFLOP"),
        (1370, "", "1.37 k"),
        (444.121, "FLOP", "444 FLOP"),
    ],
)
def test_amounts_have_three_digits_at_most(value: float, unit: str, written: str) -> None:
    assert text.amount(value, unit) == written


@given(st.floats(1e-12, 1e18))
def test_a_written_time_is_within_half_a_percent(seconds: float) -> None:
    number, unit = text.seconds(seconds).split()
    factor = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "ks": 1e3, "Ms": 1e6, "Gs": 1e9, "Ts": 1e12, "Ps": 1e15}[unit]
    assert float(number) * factor == pytest.approx(seconds, rel=0.005001)


def test_shares_have_a_decimal_where_it_matters() -> None:
    assert [text.percent(share) for share in (0.834, 0.05, 0.0994, 1.0, None)] == ["83 %", "5.0 %", "9.9 %", "100 %", "-"]


def test_names_cannot_move_the_cursor() -> None:
    assert text.printable("op\x1b[2J\udcff\nü") == "op?[2J?\nü"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Terminal().progress() as progress:
        assert progress is not None
        progress("profiling [groups]", 0.5)
    assert "profiling [groups]" in screen.getvalue()


def test_a_terminal_has_one_bar_however_many_steps_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Terminal().progress() as progress:
        assert progress is not None
        for step in ("profiling", "asking heft", "compiling segments", "measuring", f"deciding {'at length ' * 20}"):
            progress(step, 0.5)
    assert "deciding at length" in screen.getvalue()
    assert screen.getvalue().count("\n") == 1  # one line, which the end goes back to
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K")  # and takes away


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    written: list[str] = []
    now = 100.0
    report = Lines(written.append, lambda: now)
    for tick in range(160):  # ten reports a second
        now = 100 + tick / 10
        report("profiling\x1b groups" if tick < 80 else f"measuring {tick // 40}", tick % 80 / 80)
    assert written == ["5 s: profiling? groups, 62 %", "10 s: measuring 2, 25 %", "15 s: measuring 3, 88 %"]


def test_a_short_command_writes_no_lines() -> None:
    written: list[str] = []
    report = Lines(written.append, lambda: 0.0)
    report("asking heft", 0.0)
    report("asking cpop", 0.5)
    assert written == []


def test_progress_without_a_terminal_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    monkeypatch.setattr(Lines, "EVERY", 0.0)
    with Terminal().progress() as progress:
        assert progress is not None
        progress("profiling [groups]", 0.5)
    assert screen.getvalue() == "0 s: profiling [groups], 50 %\n"


@pytest.mark.parametrize("terminal", [Terminal(quiet=True), Terminal(json=True), Terminal(json=True, quiet=True)])
def test_progress_is_shown_to_nobody_who_did_not_ask(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    screen = Screen() if terminal.quiet else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal.progress() as progress:
        assert progress is None
    assert screen.getvalue() == ""


@pytest.mark.parametrize("terminal", [Terminal(quiet=True), Terminal(quiet=True, wide=True)])
def test_quiet_prints_the_answer_alone_where_there_is_one(capsys: pytest.CaptureFixture[str], terminal: Terminal) -> None:
    terminal.print(Output({}, lambda console: console.print("a table"), answer="the\x1b answer"))
    terminal.print(Output({}, lambda console: console.print("a table")))
    assert capsys.readouterr().out == "the? answer\na table\n"


def test_a_command_to_copy_is_broken_between_options_with_backslashes() -> None:
    console = Console(width=50, file=io.StringIO(), soft_wrap=True)
    words = ("placeit", "run", "a model.onnx", "-p", "p.json", "--devices", "a-cluster.yaml", "--trust")
    text.facts(console, {"what": "said", "next": words})
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == (
        "what  said\nnext  placeit run 'a model.onnx' -p p.json \\\n        --devices a-cluster.yaml --trust\n"
    )
    continued = console.file.getvalue().partition("next")[2].replace("\\\n", "")
    assert tuple(shlex.split(continued)) == words


@pytest.mark.parametrize(("width", "short"), [(20, "a_name_of_an_op"), (12, "a_nam..._op"), (4, "a...")])
def test_the_middle_of_a_name_is_left_out_where_there_is_no_room(width: int, short: str) -> None:
    found = text.shortened("a_name_of_an_op", width)
    assert len(found) <= width
    assert (found == short) or found.startswith(short.partition("...")[0])
