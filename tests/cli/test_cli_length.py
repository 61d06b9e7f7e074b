"""How long ``run`` and ``compare`` measure."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.runtime.executor import Executor


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the runs that a race asks for began."""
    begun: list[float] = []
    run = Executor.time

    def counting(self: Executor, **options: Any) -> float:
        begun.append(time.perf_counter())
        return run(self, **options)

    monkeypatch.setattr(Executor, "time", counting)
    return begun


def test_run_warms_up_as_often_as_it_is_told(cli: Any, tiny: Path, placement: Path, timed: list[float]) -> None:
    assert cli("run", tiny, "-p", placement, "--runs", 4, "--warmup", 0).exit_code == 0  # the costs are in the cache now
    counts = []
    for warmup in (0, 5):
        timed.clear()
        result = cli("run", tiny, "-p", placement, "--runs", 4, "--warmup", warmup, "--json")
        assert result.exit_code == 0, result.stderr
        data = json.loads(result.stdout)
        assert (data["runs"], data["warmup"], data["duration_s"]) == (4, warmup, None)
        counts.append(len(timed))
    assert counts[1] == counts[0] + 5


def test_a_duration_takes_the_place_of_a_number_of_runs(cli: Any, tiny: Path, placement: Path) -> None:
    result = cli("run", tiny, "-p", placement, "--duration", 0.3, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["duration_s"] == 0.3
    assert data["runs"] > 1


def test_of_runs_longer_than_the_duration_there_is_one(cli: Any, tiny: Path, placement: Path) -> None:
    result = cli("run", tiny, "-p", placement, "--duration", 1e-9, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["runs"] == 1
    assert data["latency_s"]["ci"] == [0.0, None]
    assert data["latency_s"]["median"] > 0


def test_compare_takes_a_duration_and_a_warm_up(
    cli: Any, tiny: Path, cores: Sequence[str], placement: Path, timed: list[float]
) -> None:
    devices = ("-d", ",".join(cores))
    assert cli("compare", tiny, "-p", placement, *devices, "--runs", 1).exit_code == 0
    result = cli("compare", tiny, "-p", placement, *devices, "--duration", 1e-9, "--warmup", 0, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["rounds"], data["warmup"], data["duration_s"]) == (1, 0, 1e-9)
    timed.clear()
    result = cli("compare", tiny, "-p", placement, *devices, "--runs", 2, "--warmup", 300, "--json")
    assert json.loads(result.stdout)["rounds"] == 2
    assert len(timed) > 300 * (len(cores) + 1)  # of each device and the placement; what else counts depends on their times


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--runs", 3, "--duration", 1), "either --runs or --duration"),
        (("--duration", 0), "must be positive"),
        (("--duration", -1), "must be positive"),
        (("--duration", "nan"), "must be positive"),
        (("--duration", "inf"), "must be positive and finite"),
        (("--warmup", -1), "--warmup"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(
    cli: Any, tiny: Path, placement: Path, command: str, options: tuple[object, ...], says: str
) -> None:
    result = cli(command, tiny, "-p", placement, *options)
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize(("option", "value"), [("--duration", "0.01s"), ("--seconds", "100ms")])
def test_a_duration_may_have_a_unit(cli: Any, tiny: Path, placement: Path, option: str, value: str) -> None:
    assert cli("run", tiny, "-p", placement, option, value).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [("run", "--duration"), ("run", "--seconds"), ("run", "--patience"), ("optimize", "--budget"), ("demo", "--budget")],
)
def test_what_is_no_duration_is_refused(cli: Any, tiny: Path, command: tuple[str, str]) -> None:
    result = cli(command[0], *([] if command[0] == "demo" else [tiny]), command[1], "2 minutes")
    assert result.exit_code == 2
    assert f"Invalid value for '{command[1]}': '2 minutes' is not a duration: write seconds" in result.stderr
