"""The benchmark of GiPH's experiments on problems of a few tasks: what it reports, not how good it is."""

import json
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks._harness import Report
from benchmarks.papers._lab import JobError, Lab
from benchmarks.papers.giph import sizes
from benchmarks.papers.giph.__main__ import main
from benchmarks.papers.giph.bench import EXPERIMENTS
from benchmarks.papers.giph.compare import better_equal_worse, over_heft, ratio_interval
from benchmarks.papers.giph.jobs import POINTS, Evaluation, Job, Setup, Training, load_policy, starts
from benchmarks.papers.giph.policies import UNTRAINED, VARIANTS, search
from benchmarks.papers.giph.problems import NoisyCost, changing, depth, heft_slr, instance
from benchmarks.papers.giph.sizes import FULL, QUICK, Sizes
from placeit.placers.learned.registry import make_agent
from placeit.simulator.simulate import simulate
from placeit.testing.problems import random_problem
from placeit.workloads.datasets import cases
from placeit.workloads.mixture import draw_any_problem

TINY = Sizes(
    seeds=2,
    updates=1,
    placeto_updates=1,
    problems=2,
    paper_episodes=1,
    train=4,
    held_out=2,
    evaluations=1,
    tests=4,
    recurrent_tests=2,
    fusion_tests=2,
    budget_tests=1,
    hdp_cases=1,
    hdp_updates=2,
    churn_graphs=2,
    churn_changes=1,
    hdp_churn_graphs=1,
    relocations=2,
    timed=1,
    timed_tasks=6,
    max_tasks=8,
)


@dataclass
class Done:
    code: int
    report: dict[str, Any]
    folder: Path
    setup: Setup


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """All parts, in this process."""
    folder = tmp_path_factory.mktemp("giph")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "QUICK", TINY)
        code = main(["--quick", "--workers", "0", "--work", str(folder / "work"), "--results", str(folder / "results")])
    report = json.loads((folder / "results" / "report.json").read_text())
    (work,) = (folder / "work").iterdir()
    return Done(code, report, folder / "results", Setup(TINY, 0, work))


@pytest.mark.slow
def test_every_part_fills_a_table_draws_a_figure_and_states_what_it_claims(done):
    assert done.code == 0
    assert {row["part"] for row in done.report["rows"]} == set(EXPERIMENTS.parts)
    drawn = {path.stem.partition("-")[0] for path in done.folder.glob("*.svg")}
    assert drawn == set(EXPERIMENTS.parts)
    claims = [claim["name"] for claim in done.report["claims"]]
    for words in (
        "single, seed 0: SLR of GiPH over HEFT's",
        "multi, seed 1: SLR of GiPH over HEFT's",
        "over placeto",
        "over random-task-eft",
        "over HDP, trained for each problem",
        "after changes: SLR of giph, not trained again, over HEFT",
        "GiPH is better than HEFT",
        "GiPH is worse than HEFT",
        "a placement sample in search",
        "a placement sample in training",
        "shipped policy, multi",
        "shipped policy, sensor-fusion",
        "SLR of the shipped GiPH over that of annealing, equal seconds",
        "SLR of the shipped GiPH over that of guided, equal evaluations",
    ):
        assert any(words in claim for claim in claims), words
    assert all(claim["value"] is not None and claim["target"] for claim in done.report["claims"])


@pytest.mark.slow
def test_results_say_how_to_make_them_again(done):
    text = (done.folder / "report.md").read_text()
    for words in ("python -m benchmarks.papers.giph", "Commit ", "seeds 0, 1", "## Adaptivity (Fig. 6)", "![churn](churn.svg)"):
        assert words in text
    assert set(done.report["parts"]) == set(EXPERIMENTS.parts)
    for origin in done.report["parts"].values():
        assert origin["seeds"] == [0, 1]
        assert origin["command"] == f"python -m benchmarks.papers.giph --quick --results {done.folder}"
        assert origin["figures"]


@pytest.mark.slow
def test_every_mean_over_heft_is_also_told_over_its_plans(done):
    over = [row for row in done.report["rows"] if "over_heft" in row and row["part"] != "objectives"]
    assert {row["part"] for row in over} == {"search", "hdp", "recurrent", "fusion", "convergence", "shipped", "budgets"}
    assert all(row["over_heft_planned"] is not None for row in over)
    for part in ("churn", "depth"):
        assert all("heft_planned" in row for row in done.report["rows"] if row["part"] == part and "heft" in row)
    claims = {claim["name"]: claim["value"] for claim in done.report["claims"]}
    assert {name for name in claims if name.endswith("as planned")} > {
        "single, seed 0: SLR of GiPH over HEFT's, as planned",
        "sensor fusion: SLR of GiPH over HEFT, as planned",
        "after changes: SLR of giph, not trained again, over HEFT, as planned",
        "shipped policy, single: SLR over HEFT, as planned",
        "multi, all seeds: share of problems on which GiPH is better than HEFT, as planned",
    }
    run_slr, planned = heft_slr(done.setup.dataset("sensor-fusion", 0).test)
    ratio = claims["sensor fusion: SLR of GiPH over HEFT, as planned"] / claims["sensor fusion: SLR of GiPH over HEFT"]
    assert ratio == pytest.approx(run_slr.mean() / planned.mean())


@pytest.mark.slow
def test_scenes_that_a_policy_saw_and_did_not_see_are_told_apart(done):
    scenes = [row for row in done.report["rows"] if row["part"] == "fusion" and "scene_of_seed" in row]
    assert [(row["scene_of_seed"], row["seen_in_training"]) for row in scenes] == [(0, True), (1, False)]
    shipped = [row["of"] for row in done.report["rows"] if row["part"] == "shipped" and row["problems"] == "sensor-fusion"]
    assert shipped == ["seed 0", "seed 1"]
    names = {claim["name"] for claim in done.report["claims"] if claim["part"] == "shipped"}
    assert {name for name in names if "sensor-fusion" in name} == {
        f"shipped policy, sensor-fusion{scene}: SLR over HEFT{how}"
        for scene in ("", ", the scene trained on")
        for how in ("", ", as planned")
    }


def test_the_policy_that_ships_was_trained_on_the_scene_of_seed_0_and_on_no_other():
    def edge_links(problems):
        """Bandwidths between edge devices, which are what a scene draws, by their names."""
        names = [[name for name in problem.device_names if name.startswith("edge")] for problem in problems]
        numbers = [dict(zip(problem.device_names, range(problem.devices), strict=True)) for problem in problems]
        return {
            (a, b): problem.bandwidth[number[a], number[b]]
            for problem, number, edges in zip(problems, numbers, names, strict=True)
            for a, b in pairwise(edges)
        }

    rng = np.random.default_rng(0)
    trained_on = edge_links([draw_any_problem(rng, 10) for _ in range(120)])
    for seed, same in ((0, True), (1, False)):
        tested = edge_links([case.problem for case in islice(cases("sensor-fusion", "test", seed), 40)])
        both = trained_on.keys() & tested.keys()
        assert both
        assert {bool(trained_on[pair] == tested[pair]) for pair in both} == {same}


@pytest.mark.slow
def test_searches_get_as_many_evaluations_as_giph_or_as_many_seconds(done):
    rows = [row for row in done.report["rows"] if row["part"] == "budgets" and row["problems"] == "multi"]
    by_name = {row["search"]: row for row in rows}
    names = [f"{placer}, equal {what}" for placer in ("annealing", "guided") for what in ("evaluations", "seconds")]
    assert set(by_name) == {"giph", *names}
    ops = len(done.setup.dataset("multi", 0).test[0])
    assert {by_name[name]["evaluations"] for name in ("giph", names[0], names[2])} == {2 * ops + 1}
    assert by_name[names[1]]["evaluations"] > 2 * ops + 1  # what annealing values costs it far less than a step costs GiPH
    for name in names:
        assert by_name[name]["over_heft"] <= 1 + 1e-9  # they begin there


@pytest.mark.slow
def test_hdp_is_told_at_both_learning_rates_with_an_interval(done):
    rows = {row["policy"]: row for row in done.report["rows"] if row["part"] == "hdp"}
    assert set(rows) == {"giph", "hdp", "hdp, learning rate 0.01", "heft", "heft, planned"}
    assert all(row["cases"] == TINY.hdp_cases for row in rows.values())
    assert rows["giph"]["interval"] == "1.000 to 1.000"
    assert len([row for row in done.report["rows"] if row["part"] == "churn" and "graph" in row]) == TINY.hdp_churn_graphs


def test_an_interval_of_a_ratio_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        shared = rng.lognormal(0.0, 0.5, 40)
        low, high = ratio_interval(shared * rng.lognormal(0.1, 0.1, 40), shared * rng.lognormal(0.0, 0.1, 40))
        covered += low <= np.exp(0.1) <= high
    assert covered >= 88
    a = rng.random(20) + 1
    assert ratio_interval(a, 2 * a) == pytest.approx((0.5, 0.5))
    assert over_heft(3.0, 2.0, 4.0) == {"over_heft": 1.5, "over_heft_planned": 0.75}


def test_parts_that_are_not_run_again_keep_their_results_and_their_origin(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "QUICK", replace(TINY, seeds=1))
    command = ["--quick", "--workers", "0", "--work", str(tmp_path / "work"), "--results", str(tmp_path)]

    def write(note: str, *parts: str) -> dict:
        assert main([*command, "--note", note, "--part", *parts]) == 0
        return json.loads((tmp_path / "report.json").read_text())

    first = write("first", "shipped", "depth")
    second = write("second", "depth")
    assert {part: origin["note"] for part, origin in second["parts"].items()} == {"depth": "second", "shipped": "first"}
    assert second["rows"] == first["rows"]
    assert second["claims"] == first["claims"]
    text = (tmp_path / "report.md").read_text()
    for words in (
        "--part shipped depth --quick",
        " first",
        "--part depth --quick",
        " second",
        "![shipped](shipped.svg)",
        "![depth-mean-slr](depth-mean-slr.svg)",
    ):
        assert words in text


@pytest.mark.slow
def test_the_best_so_far_never_gets_worse_and_all_policies_start_alike(done):
    trained = Training("giph", "multi")
    lab = Lab(done.setup, workers=0)
    jobs = [Evaluation(policy, "multi") for policy in (trained, *UNTRAINED)]
    lab.run(jobs)  # the folder has them all
    curves = [lab[job]["curve"] for job in jobs]
    for curve in curves:
        assert curve.shape == (TINY.tests, POINTS)
        assert (np.diff(curve) <= 0).all()
        assert (curve[:, 0] == curves[0][:, 0]).all()


@pytest.mark.slow
def test_under_noise_the_placement_shown_is_one_that_was_visited(done):
    lab = Lab(done.setup, workers=0)
    job = Evaluation("random-task-eft", "multi", noise=0.2)
    lab.run([job])
    problems = done.setup.dataset("multi", 0).test
    paths = search("random-task-eft", problems, starts(problems, 0), np.random.default_rng([0, 0, 2]))
    for problem, path, curve in zip(problems, paths, lab[job]["curve"], strict=True):
        visited = simulate(problem, path) / problem.critical_path
        assert np.isin(curve, visited).all()


@dataclass(frozen=True)
class Fails(Job):
    name: str = "fails"

    def run(self, setup: Setup):
        raise ZeroDivisionError("on purpose")


@dataclass(frozen=True)
class Follows(Job):
    name: str = "follows"
    needs: tuple[Fails, ...] = (Fails(),)
    alone: ClassVar[bool] = True

    def run(self, setup: Setup):
        return {}


@dataclass(frozen=True)
class Works(Job):
    name: str = "works"

    def run(self, setup: Setup):
        return {"answer": np.array(setup.seed)}


def test_a_job_that_fails_takes_only_those_along_that_need_it(tmp_path, capsys):
    lab = Lab(Setup(TINY, 7, tmp_path), workers=0)
    lab.run([Fails(), Follows(), Works()])
    assert lab[Works()]["answer"] == 7
    for job in (Fails(), Follows()):
        with pytest.raises(JobError, match=job.name):
            lab[job]
    told = capsys.readouterr().err
    assert "ZeroDivisionError: on purpose" in told
    assert "follows: left out: what it needs failed" in told


def test_a_part_that_fails_loses_no_other_results(tmp_path, monkeypatch, capsys):
    def tell(lab, report, figures):
        raise JobError("on purpose")

    monkeypatch.setattr(EXPERIMENTS.parts["depth"], "tell", tell)
    report = Report()
    _, failed = EXPERIMENTS.run(Setup(replace(TINY, seeds=1), 0, tmp_path), report, ["depth", "shipped"], workers=0)
    assert failed == ["depth"]
    assert {row["part"] for row in report.rows} == {"shipped"}
    assert "The part 'depth' failed" in capsys.readouterr().err


@pytest.mark.parametrize("policy", [*UNTRAINED, "giph", "giph-task-eft", "placeto"])
def test_searches_visit_feasible_placements_and_move_one_op_at_a_time(policy):
    problems = [random_problem(ops, 3, seed=ops) for ops in (9, 4)]
    agent = policy
    if policy == "placeto":
        agent = make_agent("placeto", seed=0, devices=3)
    elif policy in VARIANTS:
        agent = make_agent("giph", seed=0, variant=policy)
    begin = starts(problems, 0)
    for problem, start, path in zip(problems, begin, search(agent, problems, begin, np.random.default_rng(0)), strict=True):
        assert path.shape == (2 * len(problem) + 1, len(problem))
        assert (path[0] == start).all()
        assert np.isfinite(simulate(problem, path)).all()
        if policy != "random":
            assert ((path[1:] != path[:-1]).sum(axis=1) <= 1).all()


def test_noise_is_drawn_anew_at_every_evaluation_and_from_the_seed():
    problem = random_problem(6, 3)
    placements = np.repeat(starts([problem], 0), 3, axis=0)
    cost, again = NoisyCost(problem, 0.2, 1), NoisyCost(problem, 0.2, 1)
    values = np.concatenate([cost(placements), cost(placements)])
    assert len(np.unique(values)) == 6
    assert (np.concatenate([again(placements), again(placements)]) == values).all()
    exact = simulate(problem, placements)[0]
    assert (np.abs(values / exact - 1) <= 0.2).all()


@pytest.mark.slow
def test_no_placement_costs_less_than_the_unit_of_its_objective(done):
    for problem in done.setup.dataset("multi", 0).test:
        path = search("random", [problem], starts([problem], 0), np.random.default_rng(0))[0]
        for objective in ("latency", "total-cost", "energy"):
            one = instance(problem, objective)
            assert (one.cost(path) >= one.unit * (1 - 1e-9)).all()


def test_the_changing_network_has_16_to_20_devices_and_the_same_graphs():
    networks = changing(0, replace(TINY, churn_changes=4))
    assert len(networks) == 5
    assert networks[0][0].devices == 20
    for problems in networks:
        assert 16 <= problems[0].devices <= 20
        assert [len(problem) for problem in problems] == [len(problem) for problem in networks[0]]


def test_depth_is_the_number_of_tasks_on_the_longest_path():
    problem = random_problem(12, 2, seed=3)
    longest = np.ones(12, int)
    for v in problem.order:
        for u, w in problem.edges:
            if u == v:
                longest[w] = max(longest[w], longest[v] + 1)
    assert depth(problem) == longest.max()


def test_equal_values_are_neither_better_nor_worse():
    better, equal, worse = better_equal_worse(np.array([1.0, 2.0, 3.0, 3.0]), np.array([2.0, 2.0 + 1e-12, 1.0, 2.0]))
    assert (better, equal, worse) == (0.25, 0.25, 0.5)


@pytest.mark.slow
def test_heft_run_first_in_first_out_may_differ_from_its_plan_but_both_are_above_one(done):
    run_slr, planned = heft_slr(done.setup.dataset("single", 0).test)
    assert (run_slr >= 1).all()
    assert (planned >= 1).all()


@pytest.mark.slow
def test_a_trained_policy_is_kept_with_what_it_was_trained_for(done):
    agent = load_policy(Training("giph-3", "multi"), done.setup)
    assert agent.config["variant"] == "giph-3"


def test_the_command_prints_its_result_alone_and_fails_if_a_part_does(tmp_path, monkeypatch, capfd):
    def tell(lab, report, figures):
        raise JobError("on purpose")

    monkeypatch.setattr(sizes, "QUICK", TINY)
    results = tmp_path / "results"
    command = ["--quick", "--json", "--workers", "0", "--work", str(tmp_path), "--part", "shipped"]
    assert main([*command, "--results", str(results), "--note", "Nothing else was running."]) == 0
    text = (results / "report.md").read_text()
    assert f"    python -m benchmarks.papers.giph --part shipped --quick --results {results}\n" in text
    assert "Nothing else was running." in text
    result = json.loads(capfd.readouterr().out)
    assert result["benchmark"] == "giph"
    assert {row["part"] for row in result["rows"]} == {"shipped"}
    monkeypatch.setattr(EXPERIMENTS.parts["shipped"], "tell", tell)
    assert main(command) == 1
    printed = capfd.readouterr()
    assert json.loads(printed.out)["rows"] == []
    assert "outcomes are in" in printed.err  # kept from the first time


def test_quick_runs_do_less_of_everything_and_all_of_it():
    for name in vars(FULL):
        full, quick = getattr(FULL, name), getattr(QUICK, name)
        assert quick is not None
        assert quick > 0
        assert full is None or quick <= full
