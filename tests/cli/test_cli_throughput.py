"""Throughput on the command line: what is said of the answer, of a rate, and of what makes no sense."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.placement import Placement


def test_a_search_for_throughput_says_what_its_answer_serves(
    cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    output = tmp_path / "p.json"
    options = (
        "-d",
        ",".join(cores),
        "--budget",
        0.5,
        "--placer",
        "heft",
        "--objective",
        "throughput",
        "--rate",
        5,
        "-o",
        output,
    )
    result = cli("optimize", tiny, *options, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["objective"], data["objective_unit"]) == ("throughput", "s")
    assert data["throughput"]["rate"] == 5
    assert data["throughput"]["load"].keys() == {"constant", "poisson"}
    assert data["chosen"]["replicas"] == len(Placement.load(output).every)
    again = cli("compare", tiny, "-p", output, "-d", ",".join(cores), "--objective", "throughput", "--runs", 6, "--json")
    assert again.exit_code == 0, again.stderr
    compared = json.loads(again.stdout)
    assert compared["objective"] == "throughput"


def test_a_rate_that_nothing_sustains_is_said_and_is_no_error(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    options = ("-d", ",".join(cores), "--budget", 0.5, "--placer", "heft", "--objective", "throughput", "--rate", 1e9)
    result = cli("optimize", tiny, *options)
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    for part in (
        "requests/s",
        "busy all the time then",
        "capacity ",
        "no placement that was found sustains 1.00 G requests/s: this one serves",
    ):
        assert part in said
    for part in ("constant arrivals", "poisson arrivals", "p95", "waiting on average"):
        assert part in said


@pytest.mark.two_cores
def test_replicas_are_run_as_placements_and_compared(cli: Any, tiny: Path, placement: Path, cores: Sequence[str]) -> None:
    whole = Placement.load(placement)
    on = [Placement(whole.op_names, np.full(len(whole), d, np.int32), cores, whole.graph_hash) for d in range(2)]
    replicas = placement.with_name("replicas.json")
    Placement(on[0].op_names, on[0].devices, cores, whole.graph_hash, replicas=(on[1],)).save(replicas)
    result = cli("compare", tiny, "-p", replicas, "-p", placement, "--objective", "throughput", "--runs", 6, "--wide")
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    for part in (f"{cores[0]} 8, {cores[1]} 8", "requests/s", "Times are seconds per request"):
        assert part in said
    run = cli("run", tiny, "-p", replicas, "--requests", 40, "--json")
    assert run.exit_code == 0, run.stderr
    data = json.loads(run.stdout)
    assert data["devices"] == dict.fromkeys(cores, len(whole))
    assert (data["replicas"], data["ended"]) == (2, 40)
    assert data["in_flight"] >= 4  # more if the host takes as long as a core does
    assert set(data["utilization"]) == set(cores)  # of segments that ran there
    for options in (("--runs", 2), ("--outputs", "y.npz")):
        refused = cli("run", tiny, "-p", replicas, *options)
        assert refused.exit_code == 2
        assert "Of a placement with replicas, several requests are in flight at once" in refused.stderr


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        ("optimize", ("--rate", 0, "--objective", "throughput"), "rate is 0 requests per second"),
        ("optimize", ("--rate", -3, "--objective", "throughput"), "must be positive"),
        ("optimize", ("--rate", 3, "--objective", "total-cost"), "the objective 'total-cost' has no use for"),
        ("compare", ("--rate", 0), "rate is 0 requests per second"),
        ("compare", ("--rate", 3, "--objective", "throughput"), "leave it out for 'throughput'"),
        ("compare", ("--objective", "energy"), "compared by latency or throughput"),
        ("compare", ("--objective", "speed"), "there are latency, throughput"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cli: Any, tiny: Path, cores: Sequence[str], command: str, options: tuple[object, ...], says: str
) -> None:
    result = cli(command, tiny, "-d", cores[0], *options)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
