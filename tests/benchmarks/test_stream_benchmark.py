"""The benchmark of stream graphs on a few graphs: what it reports, not how good it is."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers._lab import Lab
from benchmarks.papers.stream.__main__ import main
from benchmarks.papers.stream.bench import EXPERIMENTS
from benchmarks.papers.stream.jobs import Divided, Setup, Training, costs, methods, optima
from benchmarks.papers.stream.parts import calibration
from benchmarks.papers.stream.sizes import Sizes
from placeit.placers.metis import partition
from placeit.simulator.throughput import ThroughputCost
from placeit.workloads.stream_graphs import PAYLOAD_BYTES

TINY = Sizes(tests=6, calibration=10, updates=2, train=4, samples=2, evaluations=100, exact=2, operators=8)


@pytest.fixture(autouse=True)
def generated(monkeypatch):
    monkeypatch.delenv("PLACEIT_DATA", raising=False)


@pytest.mark.slow
def test_every_part_fills_a_table_draws_a_figure_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.papers.stream.sizes.QUICK", TINY)
    command = ["--quick", "--json", "--workers", "0", "--work", str(tmp_path / "work")]
    assert main([*command, "--results", str(tmp_path / "results")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["part"] for row in rows} == set(EXPERIMENTS.parts)
    assert {path.stem.partition("-")[0] for path in (tmp_path / "results").glob("*.svg")} == set(EXPERIMENTS.parts)
    assert "Relative throughput of all methods" in (tmp_path / "results" / "report.md").read_text()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == rows


def test_costs_are_those_of_the_placements(tmp_path):
    setup = Setup(TINY, 0, tmp_path)
    lab = Lab(setup, 0)
    lab.run([Divided("metis"), Divided("fuser")])
    found, used = costs(lab, "METIS, 5 parts")
    for graph, cost, count in zip(setup.tests, found, used, strict=True):
        placement = partition(graph.problem(), 5)
        assert cost == ThroughputCost(graph.problem())(placement)[0]
        assert count == len(np.unique(placement))
    assert (costs(lab, "METIS, best of 2-5")[0] <= found).all()
    assert Training("B") in [need for job, _ in methods().values() for need in job.needs]


def test_the_optimum_is_found_a_few_graphs_at_a_time_each_once(tmp_path):
    setup = Setup(replace(TINY, tests=40, exact=12), 0, tmp_path)
    lab = Lab(setup, 0)
    jobs = optima(setup)
    assert len(jobs) > 1
    lab.run([*jobs, Divided("metis")])
    graphs, least = (np.concatenate([lab[job][name] for job in jobs]) for name in ("graph", "cost"))
    small = [number for number, graph in enumerate(setup.tests) if len(graph) <= TINY.operators]
    assert graphs.tolist() == small[:12]
    assert (least <= costs(lab, "METIS, best of 2-5")[0][graphs]).all()


def test_the_frozen_model_is_that_of_the_problems(tmp_path):
    setup = Setup(TINY, 0, tmp_path)
    job = calibration.Divided(recursive=False)
    load, sent, tuples = job.run(setup).values()
    size = PAYLOAD_BYTES / (1000e6 / 8 / 1e4)
    model = calibration.MODELS["a link each way between two devices"]
    problems = [graph.problem() for graph in setup.graphs[:10]]
    expected = [ThroughputCost(problem)(partition(problem, 5))[0] for problem in problems]
    assert model(load, sent, tuples, size) / 1e4 == pytest.approx(expected)


def test_the_command_prints_the_calibration(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.papers.stream.sizes.QUICK", TINY)
    assert main(["--quick", "--part", "calibration", "--workers", "0", "--json", "--work", str(tmp_path)]) == 0
    assert '"off_by"' in capsys.readouterr().out
