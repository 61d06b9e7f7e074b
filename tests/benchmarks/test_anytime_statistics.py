"""What the anytime benchmark computes of the answers of placers: regrets, intervals, who is on the front, what counts when."""

import numpy as np
import pytest

from benchmarks import anytime
from benchmarks._anytime_journal import Answer, Journal
from benchmarks._anytime_placers import contenders, in_full, is_learned, name_of
from benchmarks._anytime_plan import answered, problems_at
from benchmarks._anytime_problems import Case, family
from benchmarks._anytime_regret import best_known, front, learning_pays, mean_interval, regrets
from benchmarks._anytime_simulated import Simulated
from benchmarks._anytime_tell import Table, tell
from benchmarks._harness import Report
from placeit.core.errors import FileError, UsageError
from placeit.simulator.scheduler import GIPH_RULES
from placeit.testing.problems import random_problem

PROBLEMS = [f"p{i}" for i in range(10)]


def answer(value, took_s=0.01, evaluations=5):
    return Answer(value, took_s, evaluations, None)


def each(value):
    return dict.fromkeys(PROBLEMS, value)


def test_regret_is_the_share_by_which_a_value_exceeds_the_best_known():
    best = best_known({"a": [4.0, 2.0, None], "b": [3.0], "c": [None]})
    assert best == {"a": 2.0, "b": 3.0}
    assert regrets({"a": 2.5, "b": 3.0, "c": None}, best) == {"a": 0.25, "b": 0.0}


def test_an_interval_is_that_of_the_bootstrap_distribution_of_the_mean():
    same, one, two = mean_interval([0.5] * 20), mean_interval([0.5]), mean_interval([0.0, 1.0])
    assert (same.low, same.high, same.count) == (0.5, 0.5, 20)
    assert (one.mean, one.low, one.high) == (0.5, None, None)
    assert (two.low, two.high) == (0.0, 1.0)  # the resampled mean is 0, 1/2 or 1 with probabilities 1/4, 1/2, 1/4
    values = np.random.default_rng(0).normal(3.0, 1.0, 400)
    many, error = mean_interval(values.tolist()), values.std() / 20
    assert (many.high - many.low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert many.mean == pytest.approx(values.mean())


@pytest.mark.parametrize(
    ("placers", "on_it"),
    [
        ({"worse": each(0.1), "mixed": each(0.0) | {"p0": 0.2}, "best": each(0.0)}, ["best", "mixed"]),
        ({"some": {"p": 0.0}, "all": {"p": 0.3, "q": 0.3}}, ["all"]),
        ({"some": {"p": 0.0}, "others": {"q": 0.3}}, []),
        ({"a": {"p": 0.1}, "b": {"p": 0.0}, "c": {"p": 0.0}}, ["b", "c"]),
        ({}, []),
    ],
)
def test_on_the_front_is_who_answers_all_and_is_not_worse_beyond_the_interval(placers, on_it):
    assert front(placers) == on_it


def test_learning_pays_where_the_best_learned_placer_is_better_beyond_the_interval():
    good = {p: 0.04 + 0.001 * i for i, p in enumerate(PROBLEMS)}
    placers = {"search": each(0.10), "good": good, "bad": each(0.5), "partly": {"p0": 0.0}}
    found = learning_pays(placers, ["good", "bad", "partly"], "search")
    assert (found.learned, found.pays) == ("good", True)
    assert found.difference.mean == pytest.approx(0.0445 - 0.10)
    assert learning_pays(placers, ["bad"], "search").pays is False
    assert learning_pays(placers, ["partly"], "search").pays is None  # one problem says nothing
    assert learning_pays(placers, [], "search") is None
    assert learning_pays({"good": good}, ["good"], "search") is None


def test_the_planned_problems_take_no_longer_than_there_is_time():
    # one problem each is 140 s of 200; then 10, 10 and 10 s for the smallest, and 30 s for the next, which has got less by then
    assert problems_at(200, [10, 30, 100], most=20) == 4
    assert problems_at(60, [10, 30, 100], most=20) == 3  # what there is no time for leaves its time to the others
    assert problems_at(5, [10, 30], most=20) == 0
    for left in (2700.0, 300.0):
        spent, most, costs = 0.0, 20, [6.0 * budget for budget in (1, 3, 10, 30, 100)]
        for i in range(len(costs)):
            most = problems_at(left - spent, costs[i:], most)
            spent += most * costs[i]
        assert 0.8 * left < spent <= left


@pytest.mark.parametrize(
    ("unit", "runs", "values"),
    [
        ("seconds", {1: answer(3.0, took_s=0.5)}, {1: 3.0, 3: 3.0, 10: 3.0}),  # it came to its end
        ("seconds", {1: answer(3.0, took_s=1.0)}, {1: 3.0}),
        ("evaluations", {1: answer(3.0, evaluations=0)}, {1: 3.0, 3: 3.0, 10: 3.0}),
        ("evaluations", {1: answer(3.0, evaluations=1)}, {1: 3.0}),
        ("seconds", {1: answer(3.0, took_s=5.0)}, {1: None, 3: None}),  # late: for the first budget that it fits
        ("seconds", {1: answer(3.0, took_s=5.0), 10: answer(2.0, took_s=9.5)}, {1: None, 3: None, 10: 2.0}),
        ("evaluations", {3: answer(None, evaluations=3)}, {3: None}),  # failed for want of evaluations: asked again
    ],
)
def test_an_answer_counts_for_the_budgets_that_it_fits(unit, runs, values):
    found = answered(runs, unit, (1, 3, 10))
    assert {budget: one and one.value for budget, one in found.items()} == values


def test_a_column_is_about_the_problems_that_every_placer_was_asked_about():
    values = {
        "annealing": {1: {"p": 2.0, "q": 4.0}, 3: {"p": 2.0}},
        "hdp": {1: {"p": 3.0, "q": None}},
        "never asked": {},
    }
    table = Table.of("simulated", "seconds", "some", (1, 3), values, {"p": 2.0, "q": 4.0}, "annealing")
    assert table.counts == {1: 2, 3: 0}
    assert table.regrets[1] == {"annealing": {"p": 0.0, "q": 0.0}, "hdp": {"p": 0.5}}
    report = Report()
    tell([table], report, 0)
    first, second, decision = report.rows
    assert (first["1 s"], second["1 s"]) == ("0.0 [0.0, 0.0]", "50.0 (1 of 2)")
    assert "3 s" not in first
    assert (decision["front"], decision["best_learned"], decision["learning_pays"]) == ("annealing", "hdp", None)


def test_a_run_that_was_interrupted_asks_only_what_it_has_no_answers_to(tmp_path):
    some = [Case(f"problem {i}", random_problem(8, 3, seed=i), GIPH_RULES) for i in range(2)]
    whole = Journal(tmp_path / "whole.jsonl")
    with Simulated(whole, ["heft", "local-search"], 0, workers=0) as simulated:
        assert simulated.budgets("evaluations", (1, 3), some, limit_s=60) == {1: 2, 3: 2}
    assert simulated.asked == 6  # heft asks for nothing: once for each problem is enough
    lines = (tmp_path / "whole.jsonl").read_text().splitlines()
    (tmp_path / "part.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
    with Simulated(Journal(tmp_path / "part.jsonl"), ["heft", "local-search"], 0, workers=0) as again:
        again.budgets("evaluations", (1, 3), some, limit_s=60)
    assert again.asked == 2
    values = [{key: one.value for key, one in Journal(tmp_path / f"{name}.jsonl").items()} for name in ("whole", "part")]
    assert values[0] == values[1]


def test_what_does_not_exist_or_is_no_journal_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="nobody"):
        anytime.main(["--placers", "nobody", "--work", str(tmp_path)])
    for budget in ("0", "-1", "inf", "nan"):
        with pytest.raises(SystemExit):
            anytime.main(["--seconds", budget, "--work", str(tmp_path)])
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="giph, tensor, model"):
        family("other", 1, seed=0)
    (tmp_path / "notes.txt").write_text('{"something": "else"}\n')
    with pytest.raises(FileError, match="Line 1"):
        Journal(tmp_path / "notes.txt")


def test_a_placer_is_told_without_the_option_by_which_it_goes_on():
    for placer in [*contenders(), "annealing:restarts=2", "random:samples=7"]:
        assert name_of(in_full(placer)) == placer
    assert "evaluations=" in in_full("guided:weights=uniform")
    assert in_full("random:samples=7") == "random:samples=7"
    assert not is_learned("guided:weights=untrained")
