import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.cli.terminal import Lines, Terminal
from placeit.report import text


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.0468, "46.8 ms"), (25.14e-6, "25.1 us"), (1.0, "1.00 s"), (0.9999, "1.00 s"), (0, "0 s"), (None, "-")],
)
def test_times_have_three_digits_and_a_fitting_unit(seconds: float | None, written: str) -> None:
    assert text.seconds(seconds) == written


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [(5, "B", "5 B"), (999, "B", "999 B"), (1000, "B", "1.00 kB"), (7.75e9, "FLOP", "7.75 GFLOP"), (1370, "", "1.37 k")],
)
def test_amounts_below_a_thousand_are_whole(value: float, unit: str, written: str) -> None:
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


def test_a_step_has_one_bar_whatever_numbers_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Terminal().progress() as progress:
        assert progress is not None
        for i in range(1, 13):
            progress(f"compiling {i} of 12 segments for GPU.0", i / 12)
        progress("compiling 1 of 3 segments for GPU.0", 0.1)
    assert "compiling 1 of 3 segments for GPU.0" in screen.getvalue()
    assert screen.getvalue().count("\x1b[1A") == 1  # one line to go up in the end


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    written: list[str] = []
    now = 100.0
    report = Lines(written.append, lambda: now)
    for tick in range(600):  # a minute of reports, ten a second
        now = 100 + tick / 10
        report("profiling\x1b groups" if tick < 300 else f"measuring {tick // 100}", tick % 300 / 300)
    assert written[:3] == ["3 s: profiling? groups, 10 %", "13 s: profiling? groups, 43 %", "23 s: profiling? groups, 77 %"]
    assert written[3:] == ["30 s: measuring 3, 0 %", "40 s: measuring 4, 33 %", "50 s: measuring 5, 67 %"]


def test_a_short_command_writes_no_lines() -> None:
    written: list[str] = []
    report = Lines(written.append, lambda: 0.0)
    report("asking heft", 0.0)
    report("asking cpop", 0.5)
    assert written == []


def test_progress_without_a_terminal_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    monkeypatch.setattr(Lines, "SOONEST", 0.0)
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
