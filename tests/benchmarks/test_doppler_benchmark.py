"""The benchmark of DOPPLER's experiments: what it counts and claims, by figures made up, and whole on very little work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks._harness import Report
from benchmarks.papers._lab import Lab
from benchmarks.papers.doppler import executed
from benchmarks.papers.doppler.__main__ import main
from benchmarks.papers.doppler.bench import EXPERIMENTS
from benchmarks.papers.doppler.executed import SLOWDOWNS, BestOfEach, Fidelity, Learned
from benchmarks.papers.doppler.graphs import GRAPHS, Case
from benchmarks.papers.doppler.jobs import Placed, Setup, Training
from benchmarks.papers.doppler.sizes import FULL, QUICK, Sizes
from benchmarks.papers.doppler.statistics import best_at, correlations, episodes_to, least_of, not_worse, ratio
from benchmarks.papers.doppler.training import Watched, learn, met, paper_stages, stages
from placeit.devices.clusterfile import read_cluster
from placeit.devices.host import allowed_cores
from placeit.placers.learned.agent import ProblemInstance
from placeit.placers.learned.registry import make_agent
from placeit.session import Session
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = replace(QUICK.at(seeds=2, episodes=20), search_s=0.2, samples=4, rounds=6, saved=3, measured_s=20.0)

SLOW = ("paper", "table3", "table7", "table8", "repeated")


class Told(dict[Any, Any]):
    """Outcomes of jobs, made up."""

    def __init__(self, part: str, sizes: Sizes, outcome: Any) -> None:
        self.setup = Setup(sizes, 0, Path())
        super().__init__({job: outcome(job) for job in EXPERIMENTS.parts[part].jobs(self.setup)})


def claims(part: str, sizes: Sizes, outcome: Any) -> dict[str, dict[str, Any]]:
    report = Report()
    EXPERIMENTS.parts[part].tell(Told(part, sizes, outcome), report)
    return {claim["name"]: claim for claim in report.claims}


def trained(best: float, *, seconds: float = 1.0) -> dict[str, np.ndarray]:
    return {
        "best": np.array(best),
        "samples": np.array([best * 1.2, np.nan, best * 1.1]),
        "greedy": np.array(best * 1.3),
        "curve": np.array([[16, 2 * best], [32, best]]),
        "episodes": np.array(64),
        "seconds": np.array(seconds),
    }


# --- statistics


def test_a_rank_correlation_goes_by_ranks_and_the_other_by_values() -> None:
    pearson, spearman = correlations([1.0, 2.0, 3.0, 4.0], [1.0, 10.0, 100.0, 1000.0])
    assert spearman == pytest.approx(1.0)
    assert pearson == pytest.approx(np.corrcoef([1, 2, 3, 4], [1, 10, 100, 1000])[0, 1])
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert correlations([1.0, 5.0, 5.0, 9.0], [1.0, 2.0, 3.0, 4.0])[1] == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert correlations([1.0, 2.0, 3.0], [6.0, 4.0, 2.0]) == pytest.approx((-1.0, -1.0))
    for few in ([], [1.0, 2.0], [1.0, 1.0, 1.0]):
        assert np.isnan(correlations(few, np.arange(len(few)))).all()


def test_a_level_is_reached_when_the_curve_first_falls_to_it() -> None:
    curve = np.array([[16.0, 5.0], [48.0, 3.0], [64.0, 2.0]])
    assert [episodes_to(level, curve) for level in (6.0, 3.0, 2.5, 1.0)] == [16.0, 48.0, 64.0, np.inf]


def test_equal_costs_and_those_a_thousandth_above_are_not_worse() -> None:
    costs = {"a": 1.0, "b": 1.0009, "c": 1.0011, "d": 0.5}
    assert not_worse(costs, [dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", 2.0)]) == 3
    assert least_of([np.nan, 3.0, 2.0]) == 2.0
    assert np.isnan(least_of([np.nan]))


def test_runs_are_compared_by_round() -> None:
    drift = np.linspace(1, 3, 12)
    over = ratio(2 * drift, drift)
    assert (over.ratio, over.ci_low, over.ci_high) == pytest.approx((2.0, 2.0, 2.0))


# --- claims


def test_main_claims_the_worst_seed_against_the_best_known_and_search_against_what_was_found_here(monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.papers.doppler.parts.main.published_folder", Path)

    def outcome(job: Any) -> dict[str, np.ndarray]:
        if isinstance(job, Training):
            return trained(1200.1 * (1.02 + 0.02 * job.number), seconds=601.0 * job.number)
        return {"cost": np.array(1200.07 if job.placer.startswith("annealing") else 1300.0), "seconds": np.array(1.0)}

    found = claims("main", replace(TINY, seeds=2), outcome)
    worst = found["chain-mm: best placement met in training over the best known, worst seed"]
    assert worst["value"] == pytest.approx(1.04)
    assert worst["holds"] is False
    assert found["chain-mm: longest training"]["holds"] is False
    assert found["chain-mm: annealing in 0.2 s over the least found here"]["holds"] is True
    assert found["chain-mm: local-search in 0.2 s over the least found here"]["holds"] is False


def test_without_the_published_graphs_only_time_is_judged(monkeypatch) -> None:
    monkeypatch.delenv("PLACEIT_DATA", raising=False)
    found = claims("main", TINY, lambda _: trained(1.0) | {"cost": np.array(1.0)})
    assert set(found) == {"chain-mm: longest training"}


@pytest.mark.parametrize(("worse_on", "holds"), [((), True), (("ffnn",), True), (("ffnn", "llama-block"), False)])
def test_both_policies_have_to_be_as_good_as_either_alone_on_three_of_four_graphs(worse_on, holds) -> None:
    def outcome(job: Training) -> dict[str, np.ndarray]:
        both = "=" not in job.agent
        return trained(1.1 if both and job.case.graph in worse_on else 1.0)

    [claim] = claims("table3", FULL, outcome).values()
    assert (claim["value"], claim["holds"]) == (4 - len(worse_on), holds)


@pytest.mark.parametrize(("worst", "holds"), [(0.9, True), (1.1, False)])
def test_a_transfer_has_to_beat_the_critical_path_on_every_pair_of_graphs(worst, holds) -> None:
    def outcome(job: Any) -> dict[str, np.ndarray]:
        if isinstance(job, Placed):
            return {"cost": np.array(2.0 if job.placer == "critical-path" else 0.1), "seconds": np.array(1.0)}
        pair = job.begin is not None and (job.begin.case.graph, job.case.graph) == ("chain-mm", "llama-layer")
        return trained(2 * worst if pair and job.episodes == FULL.few[0] else 1.0)

    [claim] = claims("table4", FULL, outcome).values()
    assert claim["value"] == pytest.approx(worst)
    assert claim["holds"] is holds


@pytest.mark.parametrize(("reached_at", "times"), [(16, 4.0), (48, 4 / 3), (None, 0.0)])
def test_three_stages_have_to_come_to_the_level_of_the_third_alone_in_half_its_episodes(reached_at, times) -> None:
    def outcome(job: Learned) -> dict[str, np.ndarray]:
        alone = [[16, 3.0], [64, 2.0]]
        three = [[8, 2.5]] if reached_at is None else [[8, 2.5], [reached_at, 2.01], [64, 1.0]]
        return {"curve": np.array(three if len(job.parts) == 3 else alone), "episodes": np.array(320)}

    [claim] = claims("fig3", FULL, outcome).values()
    assert claim["value"] == pytest.approx(times)
    assert claim["holds"] is (times >= 2)


def test_what_was_learned_may_not_be_slower_than_a_rival_beyond_the_interval() -> None:
    noise = np.random.default_rng(0).lognormal(0.0, 0.02, 30)

    def outcome(job: Any) -> dict[str, np.ndarray]:
        if not isinstance(job, BestOfEach):
            return trained(1.0) | {"cost": np.array(1.0)}
        names = ("one device", "critical path", "placeto", "enumerative", "sim", "sys")
        seconds = dict(zip(names, (2.0, 1.0, 0.9, 1.1, 1.0, 1.0), strict=True))
        return {name: value * (noise if name == "sys" else noise[::-1]) for name, value in seconds.items()}

    found = claims("table2", replace(FULL, graphs=("ffnn",)), outcome)
    held = {name.split("over ")[1].split(",")[0]: claim["holds"] for name, claim in found.items() if "2 times" in name}
    assert held == {"critical path": True, "enumerative": True, "placeto": False}
    assert len(found) == 3 * len(SLOWDOWNS)


def test_simulator_and_reality_are_judged_where_placements_differ_enough_and_by_what_could_be_run() -> None:
    def outcome(job: Fidelity) -> dict[str, np.ndarray]:
        measured = np.array([1.0, 1.2, np.nan, 1.6 if job.slowdown == 3 else 1.4])
        simulated, noise = np.where(np.isnan(measured), 99.0, 2 * measured), np.array([1.0, 2.0, 1.0, 0.5])
        return {"trained_on": -measured, "simulated": simulated, "first": measured * noise, "second": measured / noise}

    found = claims("fidelity", TINY, outcome)
    assert set(found) == {f"chain-mm, one core slowed 3 times: {of}, simulated and measured" for of in ("Pearson", "Spearman")}
    assert all(claim["value"] == pytest.approx(1.0) and claim["holds"] for claim in found.values())


# --- training


def test_a_training_values_as_many_episodes_as_it_is_given_and_remembers_the_best() -> None:
    problem = random_problem(6, 3, 1, everywhere=1.0)
    asked = []

    def cost(placements: np.ndarray) -> np.ndarray:
        asked.append(placements)
        return SimulatedCost(problem)(placements)

    agent = make_agent("doppler", seed=0, width=8)
    plan = stages(agent, 64)
    imitated, learned = learn(agent, plan, ProblemInstance(problem, cost, 1.0), seed=0)
    assert [stage.kind for stage in plan] == ["imitation", "reinforce"]
    assert (imitated.best, learned.episodes) == (np.inf, 64)
    values = SimulatedCost(problem)(np.concatenate(asked))
    assert learned.best == values.min() == SimulatedCost(problem)(learned.placement[None])[0]
    assert len(learned.first) == len(asked) == plan[1].updates
    assert [best for _, best in learned.curve] == sorted({best for _, best in learned.curve}, reverse=True)


def test_what_could_not_be_valued_is_never_the_best() -> None:
    problem = random_problem(4, 2)
    watched = Watched(ProblemInstance(problem, lambda placements: np.array([np.nan, 2.0, 1.0, np.nan]), 1.0), 1)
    watched.draw(np.random.default_rng(0), 4, 0.0)
    watched.cost(np.arange(16, dtype=np.int32).reshape(4, 4))
    assert (watched.best, watched.placement.tolist(), watched.curve) == (1.0, [8, 9, 10, 11], [(4, 1.0)])


def test_stages_by_cost_count_on_and_those_that_value_nothing_do_not() -> None:
    problem = random_problem(4, 2)
    costs = iter([[5.0, 4.0], [6.0, 3.0], [4.5, 2.0]])
    first, idle, second = (Watched(ProblemInstance(problem, lambda _: np.array(next(costs)), 1.0), 8) for _ in range(3))
    for watched, updates in ((first, 2), (second, 1)):
        for _ in range(updates):
            watched.draw(np.random.default_rng(0), 1, 0.0)
            watched.cost(np.full((2, 4), watched is second, np.int32))
    idle.draw(np.random.default_rng(0), 1, 0.0)
    found = met([first, idle, second])
    assert found["curve"].tolist() == [[8, 4.0], [16, 3.0], [24, 2.0]]
    assert (found["best"], found["episodes"], found["placement"].tolist()) == (2.0, 24, [1] * 4)
    nothing = met([idle])
    assert (nothing["best"], len(nothing["curve"]), best_at(nothing["curve"]), best_at(found["curve"])) == (np.inf, 0, None, 24)


def test_placeto_learns_by_the_schedule_of_the_paper() -> None:
    first, second = stages(make_agent("placeto", seed=0, devices=4), 160)
    assert (first.kind, first.updates, second.kind, second.updates * second.episodes) == ("imitation", 2, "reinforce", 160)
    assert (second.learning_rate_at(0.0), second.learning_rate_at(1.0)) == pytest.approx((1e-3, 1e-6))
    assert (second.explore_at(0.0), second.explore_at(1.0), second.entropy_at(0.5)) == (0.5, 0.0, 0.01)


def test_doppler_can_learn_by_the_settings_of_the_paper() -> None:
    first, second = paper_stages(4000)
    assert (first.kind, second.kind, second.updates, second.problems * second.episodes) == ("imitation", "reinforce", 4000, 1)
    assert (second.learning_rate_at(0.0), second.learning_rate_at(1.0)) == pytest.approx((1e-4, 1e-7))
    assert (second.explore_at(0.0), second.explore_at(1.0), second.entropy_at(0.5)) == (0.2, 0.0, 0.01)
    assert (second.baseline, second.gamma) == ("moving", 1.0)


# --- graphs and devices


def test_two_meshes_are_joined_by_four_links() -> None:
    bandwidth = read_cluster(EXAMPLES / "two_meshes.yaml").bandwidth()
    for mesh in (slice(0, 4), slice(4, 8)):
        assert (bandwidth[mesh, mesh][~np.eye(4, dtype=bool)] == 25e9).all()
    between = bandwidth[:4, 4:]
    assert (between == bandwidth[4:, :4].T).all()
    assert np.array_equal(between == 25e9, np.eye(4, dtype=bool))


def test_less_memory_bars_placements_whose_weights_or_live_tensors_need_more() -> None:
    whole, less = Case("ffnn", "four"), Case("ffnn", "four, 8 GB")
    assert less.problem.memory.tolist() == [8e9] * 4
    one_device = np.zeros((1, len(whole.problem)), np.int32)
    assert np.isfinite(whole.cost()(one_device)[0])
    assert np.isinf(less.cost()(one_device)[0])
    assert np.isnan(less.instance().cost(one_device)[0])
    assert Case("chain-mm", "four, 3 GB").problem.single_devices == ()


@pytest.mark.parametrize("graph", GRAPHS)
def test_without_the_published_graphs_our_own_take_their_place(graph, monkeypatch) -> None:
    from benchmarks.papers.doppler.graphs import _problem

    monkeypatch.delenv("PLACEIT_DATA", raising=False)
    monkeypatch.setattr("benchmarks.papers.doppler.graphs._problem", _problem.__wrapped__)
    assert Case(graph, "published").problem.key == Case(graph, "four").problem.key


# --- the whole


@pytest.mark.parametrize("part", ["table9", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_a_part_runs_on_little_work_and_goes_on_from_what_is_done(part, tmp_path, monkeypatch) -> None:
    setup = Setup(TINY, 0, tmp_path)
    report, again = Report(commit="first"), Report(commit="second")
    assert EXPERIMENTS.run(setup, report, [part], workers=0)[1] == []
    assert {row["part"] for row in report.rows} == {part}

    def refused(job: Any, setup: Any) -> None:
        raise AssertionError(f"{job.name} is done again")

    monkeypatch.setattr(Training, "run", refused)
    monkeypatch.setattr(Placed, "run", refused)
    assert EXPERIMENTS.run(setup, again, [part], workers=0)[1] == []
    assert (again.rows, again.claims, again.commit) == (report.rows, report.claims, "first")


@pytest.mark.slow
def test_a_training_that_failed_costs_its_part_and_no_other(tmp_path, monkeypatch, capsys) -> None:
    real = Training.run

    def broken(job: Training, setup: Setup) -> Any:
        if job.case.where == "meshes":
            raise ZeroDivisionError("on purpose")
        return real(job, setup)

    monkeypatch.setattr(Training, "run", broken)
    report = Report()
    assert EXPERIMENTS.run(Setup(TINY, 0, tmp_path), report, ["table3", "table9"], workers=0)[1] == ["table9"]
    assert {row["part"] for row in report.rows} == {"table3"}
    assert "on purpose" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_writes_results_that_say_how_to_make_them_again(tmp_path, capsys) -> None:
    command = ["--part", "table3", "--quick", "--episodes", "16", "--workers", "0", "--json", "--results", str(tmp_path)]
    assert main(command) == 0
    printed, kept = json.loads(capsys.readouterr().out), json.loads((tmp_path / "report.json").read_text())
    assert kept["rows"] == printed["rows"]
    assert kept["parts"]["table3"]["command"].startswith(
        "python -m benchmarks.papers.doppler --part table3 --quick --episodes 16"
    )
    text = (tmp_path / "report.md").read_text()
    assert "## Either policy alone (Table 3)" in text
    assert "| table3 | graphs of 1 on which both policies" in text


class Sure:
    """In place of measured costs, which may drop what they measure on a busy machine: by the plan, and never in doubt."""

    def __init__(self, session: Session, **_: Any) -> None:
        self._segmenter, self._known = session.segmenter, {}

    def __call__(self, placements: np.ndarray) -> np.ndarray:
        return np.array([self._known.setdefault(row.tobytes(), self._seconds(row)) for row in placements])

    def winner(self, *_: int) -> Any:
        best = min(self._known, key=lambda key: self._known[key])
        return SimpleNamespace(outcome=SimpleNamespace(devices=np.frombuffer(best, np.int32)))

    def _seconds(self, row: np.ndarray) -> float:
        return self._segmenter.plan(row).schedule.makespan


@pytest.mark.slow
def test_what_is_executed_is_learned_raced_and_compared(tmp_path, monkeypatch) -> None:
    if len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    monkeypatch.setattr(executed, "MeasuredCost", Sure)
    monkeypatch.setitem(executed.MODELS, "chain-mm", "chain-mm:shards=2,size=64")
    setup = Setup(TINY, 0, tmp_path)
    report = Report()
    assert EXPERIMENTS.run(setup, report, ["table2", "table5", "fig3", "fidelity"], workers=0)[1] == []
    assert {row["part"] for row in report.rows} == {"table2", "table5", "fig3", "fidelity"}
    lab = Lab(setup, 0)
    job = BestOfEach("chain-mm", 2.0)
    lab.run([job])  # the folder has it
    assert set(lab[job]) == {"one device", "critical path", "placeto", "enumerative", "sim", "sys"}
    assert all(len(seconds) == TINY.rounds and (seconds > 0).all() for seconds in lab[job].values())
