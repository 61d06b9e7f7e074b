"""What the experiments of papers count, claim and compare, by figures made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from benchmarks._harness import Report
from benchmarks.papers._experiments import Experiments
from benchmarks.papers._lab import Job, Lab, Setup
from benchmarks.papers.doppler import jobs as doppler
from benchmarks.papers.doppler.bench import EXPERIMENTS
from benchmarks.papers.doppler.executed import BestOfEach, Fidelity, Learned
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.parts.table1 import synchronous_seconds
from benchmarks.papers.doppler.sizes import FULL, QUICK, Sizes
from benchmarks.papers.doppler.statistics import correlations, episodes_to, least_of, not_worse, ratio
from benchmarks.papers.doppler.training import Watched, met
from benchmarks.papers.giph.compare import better_equal_worse, ratio_interval
from benchmarks.papers.stream import jobs as stream
from benchmarks.papers.stream.parts import calibration
from benchmarks.papers.stream.sizes import Sizes as StreamSizes
from placeit.bench.streams import PAYLOAD_BYTES
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.workloads.datasets import cases
from placeit.learning.workloads.mixture import draw_any_problem
from placeit.learning.workloads.tensors import shard
from placeit.learning.workloads.tensors.expression import einsum, elementwise, tensor
from placeit.placers.metis import partition
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import ThroughputCost
from placeit.testing.problems import random_problem

TINY = QUICK.at(seeds=2, episodes=20)
STREAM = StreamSizes(tests=12, calibration=10, evaluations=100, exact=6, operators=12)


@pytest.fixture(autouse=True)
def generated(monkeypatch):
    monkeypatch.delenv("PLACEIT_DATA", raising=False)


# --- DOPPLER


def test_a_rank_correlation_goes_by_ranks_and_the_other_by_values() -> None:
    pearson, spearman = correlations([1.0, 2.0, 3.0, 4.0], [1.0, 10.0, 100.0, 1000.0])
    assert (pearson, spearman) == (pytest.approx(np.corrcoef([1, 2, 3, 4], [1, 10, 100, 1000])[0, 1]), pytest.approx(1.0))
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert correlations([1.0, 5.0, 5.0, 9.0], [1.0, 2.0, 3.0, 4.0])[1] == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    for few in ([], [1.0, 2.0], [1.0, 1.0, 1.0]):
        assert np.isnan(correlations(few, np.arange(len(few)))).all()


def test_levels_least_costs_and_ratios_are_those_of_what_was_measured() -> None:
    curve = np.array([[16.0, 5.0], [48.0, 3.0], [64.0, 2.0]])
    assert [episodes_to(level, curve) for level in (6.0, 3.0, 2.5, 1.0)] == [16.0, 48.0, 64.0, np.inf]
    costs = {"a": 1.0, "b": 1.0009, "c": 1.0011, "d": 0.5}  # a thousandth above is not worse
    assert not_worse(costs, [dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", 2.0)]) == 3
    assert least_of([np.nan, 3.0, 2.0]) == 2.0
    assert np.isnan(least_of([np.nan]))
    over = ratio(2 * np.linspace(1, 3, 12), np.linspace(1, 3, 12))  # drift cancels by round
    assert (over.ratio, over.ci_low, over.ci_high) == pytest.approx((2.0, 2.0, 2.0))


def claims(part: str, sizes: Sizes, outcome: Any) -> dict[str, Any]:
    """Value and verdict of each claim of a part whose jobs have come to this."""
    told: Any = type("Told", (dict,), {"setup": doppler.Setup(sizes, 0, Path())})()
    told |= {job: outcome(job) for job in EXPERIMENTS.parts[part].jobs(told.setup)}
    report = Report()
    EXPERIMENTS.parts[part].tell(told, report)
    return {str(claim["name"]): (claim["value"], claim["holds"]) for claim in report.claims}


def trained(best: float, *, seconds: float = 1.0) -> dict[str, np.ndarray]:
    values = {"best": best, "samples": [best * 1.2, np.nan, best * 1.1], "greedy": best * 1.3, "episodes": 64}
    return {
        name: np.array(value) for name, value in (values | {"curve": [[16, 2 * best], [32, best]], "seconds": seconds}).items()
    }


def placed(cost: float) -> dict[str, np.ndarray]:
    return {"cost": np.array(cost), "seconds": np.array(1.0)}


def test_main_claims_the_worst_seed_against_the_best_known_and_search_against_what_was_found_here(monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.papers.doppler.parts.main.published_folder", Path)

    def outcome(job: Any) -> dict[str, np.ndarray]:
        if isinstance(job, doppler.Training):
            return trained(1200.1 * (1.02 + 0.02 * job.number), seconds=601.0 * job.number)
        return placed(1200.07 if job.placer.startswith("annealing") else 1300.0)

    found = claims("main", TINY, outcome)
    worst = "chain-mm: best placement met in training over the best known, worst seed"
    assert found[worst] == (pytest.approx(1.04), False)
    assert found["chain-mm: longest training"][1] is False
    searched = f"in {TINY.search_s:g} s over the least found here"
    assert (found[f"chain-mm: annealing {searched}"][1], found[f"chain-mm: local-search {searched}"][1]) == (True, False)


def test_a_synchronous_system_waits_for_the_busiest_device_and_link_of_every_step() -> None:
    x, weights = tensor("X", 4, 4), tensor("W", 4, 4)
    program = shard([elementwise("relu", "ij->ij", torch.relu, einsum("XW", "ij,jk->ik", x, weights))], 2)
    ops = len(program.ops)
    assert [op.name for op in program.ops] == ["XW[i0]", "XW[i1]", "relu[i0]", "relu[i1]"]
    compute, nbytes = np.outer(np.arange(1.0, ops + 1), [1.0, 10.0]), program.graph.tensor_bytes[:2]
    problem = Problem.from_arrays(compute, program.graph.edges, nbytes, np.full((2, 2), 4.0), np.full((2, 2), 0.5))
    spread, alone = np.array([0, 1, 1, 1], np.int32), np.zeros(ops, np.int32)
    assert synchronous_seconds(program, problem, alone) == 2.0 + 1.0 + 3.0 + 4.0
    assert synchronous_seconds(program, problem, spread) == 20.0 + (0.5 + nbytes[0] / 4.0) + 70.0
    assert float(SimulatedCost(problem)(spread[None])[0]) < synchronous_seconds(program, problem, spread)


@pytest.mark.parametrize(("worse_on", "holds"), [((), True), (("ffnn",), True), (("ffnn", "llama-block"), False)])
def test_both_policies_have_to_be_as_good_as_either_alone_on_three_of_four_graphs(worse_on, holds) -> None:
    found = claims("table3", FULL, lambda job: trained(1.1 if "=" not in job.agent and job.case.graph in worse_on else 1.0))
    assert list(found.values()) == [(4 - len(worse_on), holds)]


@pytest.mark.parametrize(("worst", "holds"), [(0.9, True), (1.1, False)])
def test_a_transfer_has_to_beat_the_critical_path_on_every_pair_of_graphs(worst, holds) -> None:
    def outcome(job: Any) -> dict[str, np.ndarray]:
        if isinstance(job, doppler.Placed):
            return placed(2.0 if job.placer == "critical-path" else 0.1)
        pair = job.begin is not None and (job.begin.case.graph, job.case.graph) == ("chain-mm", "llama-layer")
        return trained(2 * worst if pair and job.episodes == FULL.few[0] else 1.0)

    assert list(claims("table4", FULL, outcome).values()) == [(pytest.approx(worst), holds)]


@pytest.mark.parametrize(("reached_at", "times"), [(16, 4.0), (48, 4 / 3), (None, 0.0)])
def test_three_stages_have_to_come_to_the_level_of_the_third_alone_in_half_its_episodes(reached_at, times) -> None:
    def outcome(job: Learned) -> dict[str, np.ndarray]:
        three = [[8, 2.5]] if reached_at is None else [[8, 2.5], [reached_at, 2.01], [64, 1.0]]
        return {"curve": np.array(three if len(job.parts) == 3 else [[16, 3.0], [64, 2.0]]), "episodes": np.array(320)}

    assert list(claims("fig3", FULL, outcome).values()) == [(pytest.approx(times), times >= 2)]


def test_what_was_learned_may_not_be_slower_than_a_rival_beyond_the_interval() -> None:
    noise = np.random.default_rng(0).lognormal(0.0, 0.02, 30)
    seconds = {"one device": 2.0, "critical path": 1.0, "placeto": 0.9, "enumerative": 1.1, "sim": 1.0, "sys": 1.0}

    def outcome(job: Any) -> dict[str, np.ndarray]:
        if not isinstance(job, BestOfEach):
            return trained(1.0) | placed(1.0)
        return {name: value * (noise if name == "sys" else noise[::-1]) for name, value in seconds.items()}

    found = claims("table2", replace(FULL, graphs=("ffnn",)), outcome)
    held = {name.split("over ")[1].split(",")[0]: holds for name, (_, holds) in found.items() if "2 times" in name}
    assert held == {"critical path": True, "enumerative": True, "placeto": False}


def test_simulator_and_reality_are_judged_where_placements_differ_enough_and_by_what_could_be_run() -> None:
    def outcome(job: Fidelity) -> dict[str, np.ndarray]:
        measured = np.array([1.0, 1.2, np.nan, 1.6 if job.slowdown == 3 else 1.4])
        simulated, noise = np.where(np.isnan(measured), 99.0, 2 * measured), np.array([1.0, 2.0, 1.0, 0.5])
        return {"trained_on": -measured, "simulated": simulated, "first": measured * noise, "second": measured / noise}

    found = claims("fidelity", TINY, outcome)
    assert set(found) == {f"chain-mm, one core slowed 3 times: {of}, simulated and measured" for of in ("Pearson", "Spearman")}
    assert list(found.values()) == [(pytest.approx(1.0), True)] * 2


def test_what_could_not_be_valued_is_never_the_best_and_stages_count_on() -> None:
    costs = iter([[np.nan, 4.0], [6.0, 3.0], [np.nan, 2.0]])
    instance = ProblemInstance(random_problem(4, 2), lambda _: np.array(next(costs)), 1.0)
    first, idle, second = (Watched(instance, 8) for _ in range(3))
    for watched, updates in ((first, 2), (second, 1)):
        for _ in range(updates):
            watched.draw(np.random.default_rng(0), 1, 0.0)
            watched.cost(np.full((2, 4), watched is second, np.int32))
    idle.draw(np.random.default_rng(0), 1, 0.0)
    found = met([first, idle, second])
    assert found["curve"].tolist() == [[8, 4.0], [16, 3.0], [24, 2.0]]
    assert (found["best"], found["episodes"], found["placement"].tolist()) == (2.0, 24, [1] * 4)
    assert met([idle])["best"] == np.inf


def test_less_memory_bars_placements_whose_weights_or_live_tensors_need_more() -> None:
    whole, less = Case("ffnn", "four"), Case("ffnn", "four, 8 GB")
    one_device = np.zeros((1, len(whole.problem)), np.int32)
    assert np.isfinite(whole.cost()(one_device)[0])
    assert np.isinf(less.cost()(one_device)[0])
    assert np.isnan(less.instance().cost(one_device)[0])
    assert Case("chain-mm", "four, 3 GB").problem.single_devices == ()


# --- GiPH


def test_an_interval_of_a_ratio_covers_it_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(3), 0
    for _ in range(100):
        shared = rng.lognormal(0.0, 0.5, 40)
        low, high = ratio_interval(shared * rng.lognormal(0.1, 0.1, 40), shared * rng.lognormal(0.0, 0.1, 40))
        covered += low <= np.exp(0.1) <= high
    assert covered >= 88
    a, b = np.array([1.0, 2.0, 3.0, 3.0]), np.array([2.0, 2.0 + 1e-12, 1.0, 2.0])
    assert better_equal_worse(a, b) == (0.25, 0.25, 0.5)


def test_the_policy_that_ships_was_trained_on_the_scene_of_seed_0_and_on_no_other() -> None:
    def edge_links(problems: Any) -> dict[tuple[str, str], float]:
        """Bandwidths between edge devices, which are what a scene draws, by their names."""
        found = {}
        for problem in problems:
            number = dict(zip(problem.device_names, range(problem.devices), strict=True))
            for a, b in pairwise(name for name in problem.device_names if name.startswith("edge")):
                found[a, b] = problem.bandwidth[number[a], number[b]]
        return found

    rng = np.random.default_rng(0)
    trained_on = edge_links([draw_any_problem(rng, 10) for _ in range(120)])
    for seed, same in ((0, True), (1, False)):
        tested = edge_links([case.problem for case in islice(cases("sensor-fusion", "test", seed), 40)])
        both = trained_on.keys() & tested.keys()
        assert {bool(trained_on[pair] == tested[pair]) for pair in both} == {same}


# --- stream graphs


def test_costs_and_optima_of_stream_graphs_are_those_of_their_placements(tmp_path) -> None:
    setup = stream.Setup(STREAM, 0, tmp_path)
    lab, jobs = Lab(setup, 0), stream.optima(stream.Setup(STREAM, 0, tmp_path))
    lab.run([stream.Divided("metis"), *jobs])
    found, used = stream.costs(lab, "METIS, 5 parts")
    placements = [partition(graph.problem(), 5) for graph in setup.tests]
    assert used.tolist() == [len(np.unique(placement)) for placement in placements]
    assert found.tolist() == [ThroughputCost(g.problem())(p)[0] for g, p in zip(setup.tests, placements, strict=True)]
    graphs, least = (np.concatenate([lab[job][name] for job in jobs]) for name in ("graph", "cost"))
    assert (
        graphs.tolist()
        == [number for number, graph in enumerate(setup.tests) if len(graph) <= STREAM.operators][: STREAM.exact]
    )
    assert (least <= stream.costs(lab, "METIS, best of 2-5")[0][graphs]).all()


def test_the_calibrated_model_of_communication_is_that_of_the_problems(tmp_path) -> None:
    setup = stream.Setup(STREAM, 0, tmp_path)
    load, sent, tuples = calibration.Divided(recursive=False).run(setup).values()
    model = calibration.MODELS["a link each way between two devices"]
    problems = [graph.problem() for graph in setup.graphs[:10]]
    expected = [ThroughputCost(problem)(partition(problem, 5))[0] for problem in problems]
    assert model(load, sent, tuples, PAYLOAD_BYTES / (1000e6 / 8 / 1e4)) / 1e4 == pytest.approx(expected)


# --- jobs and parts


@dataclass(frozen=True)
class Works(Job):
    name: str = "works"

    def run(self, setup: Any) -> Any:
        return {"answer": np.array(setup.seed)}


@dataclass(frozen=True)
class Fails(Works):
    name: str = "fails"

    def run(self, setup: Any) -> Any:
        raise ZeroDivisionError("on purpose")


@dataclass(frozen=True)
class Follows(Works):
    name: str = "follows"
    needs: tuple[Job, ...] = (Fails(),)
    alone: ClassVar[bool] = True


def part_of(job: Job) -> Any:
    """A part that tells what one job comes to."""
    return SimpleNamespace(
        jobs=lambda _: [job], tell=lambda lab, report: report.row(part=job.name, answer=lab[job]["answer"].item())
    )


def test_what_fails_costs_no_other_and_what_was_done_is_not_done_again(tmp_path, capsys, monkeypatch) -> None:
    jobs = {job.name: part_of(job) for job in (Works(), Fails(), Follows())}
    experiments: Any = Experiments("made up", jobs, None, Setup, str, list, figures=False)  # type: ignore[arg-type]
    for commit in ("first", "second"):  # the second finds what the first has done
        report = Report(commit=commit)
        assert experiments.run(Setup(None, 7, tmp_path), report, list(jobs), workers=0)[1] == ["fails", "follows"]
        assert (report.rows, report.commit) == ([{"part": "works", "answer": 7}], "first")
        monkeypatch.setattr(Works, "run", Fails.run)
    told = capsys.readouterr().err
    assert "ZeroDivisionError: on purpose" in told
    assert "follows: left out: what it needs failed" in told
