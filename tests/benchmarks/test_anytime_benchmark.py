"""The anytime benchmark: its computations by hand-made values, and its whole on few small problems."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import anytime
from benchmarks._anytime_journal import Answer, Journal, Key
from benchmarks._anytime_measured import CALIBRATED, Measured, Setting, placed_values
from benchmarks._anytime_placers import contenders, in_full, is_learned, name_of, training_seconds
from benchmarks._anytime_plan import answered, problems_at
from benchmarks._anytime_problems import FAMILIES, Case, family, unequal_cores
from benchmarks._anytime_regret import best_known, front, learning_pays, mean_interval, regrets
from benchmarks._anytime_simulated import Simulated
from benchmarks._anytime_tell import Table, tell, write_results
from benchmarks._harness import Report
from placeit import backends
from placeit.core.errors import FileError, UsageError
from placeit.devices.host import allowed_cores
from placeit.placers.registry import placer_names
from placeit.profiler.cache import Cache
from placeit.testing.problems import random_problem

KEY = Key("seconds", "a problem", "heft", 1, 0)
QUICKLY = Answer(2.0, 0.01, 0)


def answer(value, took_s=0.01, evaluations=5, why=None):
    return Answer(value, took_s, evaluations, why)


def cases(count, ops=8):
    return [Case(f"problem {i}", random_problem(ops, 3, seed=i), {}) for i in range(count)]


def test_regret_is_the_share_by_which_a_value_exceeds_the_best_known():
    best = best_known({"a": [4.0, 2.0, None], "b": [3.0], "c": [None]})
    assert best == {"a": 2.0, "b": 3.0}
    assert regrets({"a": 2.5, "b": 3.0, "c": None}, best) == {"a": 0.25, "b": 0.0}


def test_the_interval_of_equal_values_is_a_point_and_a_single_value_has_none():
    same = mean_interval([0.5] * 20)
    assert (same.mean, same.low, same.high, same.count) == (0.5, 0.5, 0.5, 20)
    one = mean_interval([0.5])
    assert (one.mean, one.low, one.high, one.count) == (0.5, None, None, 1)


def test_the_interval_is_that_of_the_bootstrap_distribution_of_the_mean():
    # of two values the resampled mean is 0, 1/2 or 1 with probabilities 1/4, 1/2, 1/4
    two = mean_interval([0.0, 1.0])
    assert (two.low, two.high) == (0.0, 1.0)
    # of many its spread is that of the normal distribution: 1.96 standard errors
    values = np.random.default_rng(0).normal(3.0, 1.0, 400)
    many = mean_interval(values.tolist())
    error = values.std() / 20
    assert many.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert many.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_the_front_has_the_best_and_whoever_is_not_worse_beyond_the_interval():
    problems = [f"p{i}" for i in range(10)]
    best = dict.fromkeys(problems, 0.0)
    worse = dict.fromkeys(problems, 0.1)
    mixed = {p: 0.2 if i == 0 else 0.0 for i, p in enumerate(problems)}  # equal on nine of ten
    found = front({"worse": worse, "mixed": mixed, "best": best})
    assert found == ["best", "mixed"]


def test_nobody_is_on_the_front_without_an_answer_to_every_problem():
    assert front({"some": {"p": 0.0}, "all": {"p": 0.3, "q": 0.3}}) == ["all"]
    assert front({"some": {"p": 0.0}, "others": {"q": 0.3}}) == []
    assert front({}) == []


def test_of_a_single_problem_the_front_is_who_is_best():
    assert front({"a": {"p": 0.1}, "b": {"p": 0.0}, "c": {"p": 0.0}}) == ["b", "c"]


def test_learning_pays_where_the_best_learned_placer_is_better_beyond_the_interval():
    problems = [f"p{i}" for i in range(8)]
    placers = {
        "search": dict.fromkeys(problems, 0.10),
        "good": {p: 0.04 + 0.001 * i for i, p in enumerate(problems)},
        "bad": dict.fromkeys(problems, 0.5),
        "partly": {"p0": 0.0},
    }
    found = learning_pays(placers, ["good", "bad", "partly"], "search")
    assert found.learned == "good"
    assert found.difference.mean == pytest.approx(0.0435 - 0.10)
    assert found.pays is True
    assert learning_pays(placers, ["bad"], "search").pays is False
    assert learning_pays(placers, ["partly"], "search").pays is None  # one problem says nothing
    assert learning_pays(placers, [], "search") is None
    assert learning_pays({"good": placers["good"]}, ["good"], "search") is None


def test_each_budget_gets_about_the_same_time_and_none_more_problems_than_a_smaller_one():
    # one problem each is 140 s of 200; then 10, 10 and 10 s for the smallest, and 30 s for the next, which has got less by then
    assert problems_at(200, [10, 30, 100], most=20) == 4
    assert problems_at(160, [30, 100], most=4) == 2
    assert problems_at(100, [100], most=2) == 1


def test_budgets_that_there_is_no_time_for_leave_theirs_to_the_others():
    assert problems_at(60, [10, 30, 100], most=20) == 3
    assert problems_at(5, [10, 30], most=20) == 0
    assert problems_at(10_000, [1, 2], most=20) == 20


@pytest.mark.parametrize(("minutes", "most"), [(45, 20), (5, 20)])
def test_the_planned_problems_take_no_longer_than_there_is_time(minutes, most):
    budgets, each, left, spent = (1, 3, 10, 30, 100), 6, 60.0 * minutes, 0.0
    for i in range(len(budgets)):
        costs = [budget * each for budget in budgets[i:]]
        most = problems_at(left - spent, costs, most)
        spent += most * costs[0]
    assert 0.8 * left < spent <= left


def test_a_run_that_came_to_its_end_answers_for_all_larger_budgets():
    found = answered({1: answer(3.0, took_s=0.5)}, "seconds", (1, 3, 10))
    assert [found[budget].value for budget in (1, 3, 10)] == [3.0, 3.0, 3.0]
    assert answered({1: answer(3.0, took_s=1.0)}, "seconds", (1, 3, 10)).keys() == {1}
    heft = answered({1: answer(3.0, evaluations=0)}, "evaluations", (1, 3))
    assert heft[3].value == 3.0
    assert answered({1: answer(3.0, evaluations=1)}, "evaluations", (1, 3)).keys() == {1}


def test_an_answer_that_is_late_counts_for_the_first_budget_that_it_fits_and_spares_those_before():
    late = {1: answer(3.0, took_s=5.0)}
    assert answered(late, "seconds", (1, 3, 10)) == {1: None, 3: None}
    late[10] = answer(2.0, took_s=9.5)
    assert answered(late, "seconds", (1, 3, 10)) == {1: None, 3: None, 10: late[10]}


def test_runs_with_more_evaluations_than_there_is_time_for_are_left_out():
    slow = {10: answer(3.0, took_s=1.0, evaluations=10)}
    assert answered(slow, "evaluations", (10, 100, 1000)) == {10: slow[10], 1000: None}


def test_a_placer_that_failed_for_want_of_evaluations_is_asked_again():
    failed = answer(None, evaluations=3, why="too few")
    assert answered({3: failed}, "evaluations", (3, 10)) == {3: None}
    assert answered({10: failed}, "evaluations", (10, 30)) == {10: None, 30: None}


def test_a_journal_goes_on_after_the_last_whole_line(tmp_path):
    path = tmp_path / "work" / "answers.jsonl"
    journal = Journal(path)
    journal.add(KEY, QUICKLY)
    other = replace(KEY, placer="cpop")
    journal.add(other, Answer(None, 1.0, 3, "no", None, (0, 1), "abc"))
    with path.open("a") as file:
        file.write('{"key": {"unit": "sec')
    again = Journal(path)
    assert dict(again) == {KEY: QUICKLY, other: Answer(None, 1.0, 3, "no", None, (0, 1), "abc")}
    again.add(replace(KEY, budget=3), QUICKLY)
    assert len(Journal(path)) == 3


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text('{"something": "else"}\n')
    with pytest.raises(FileError, match="Line 1"):
        Journal(path)


def test_every_registered_placer_takes_part():
    assert [name_of(in_full(name)) for name in contenders()] == list(placer_names())
    assert contenders(["giph:episodes=2"])[-1] == "giph:episodes=2"
    assert in_full("giph:episodes=2") == "giph:episodes=2"


def test_who_only_time_limits_is_asked_with_seconds_alone():
    simulated = Simulated(Journal(), ["heft", "cp-sat"], 0, workers=0)
    assert simulated.asked_about("seconds") == ["heft", "cp-sat"]
    assert simulated.asked_about("evaluations") == ["heft"]


def test_who_learns_is_known_from_where_it_is():
    assert {name for name in placer_names() if is_learned(name)} >= {"giph", "guided", "hdp", "placeto", "doppler"}
    assert not is_learned("annealing")
    assert training_seconds("guided") > 0
    assert training_seconds("hdp") is None


def test_a_run_that_was_interrupted_asks_only_what_it_has_no_answers_to(tmp_path):
    some = cases(2)
    whole = Journal(tmp_path / "whole.jsonl")
    with Simulated(whole, ["heft", "local-search"], 0, workers=0) as simulated:
        assert simulated.budgets("evaluations", (1, 3), some, limit_s=60) == {1: 2, 3: 2}
    assert simulated.asked == 6  # heft asks for nothing: once for each problem is enough
    part = Journal(tmp_path / "part.jsonl")
    for key in list(whole)[:4]:
        part.add(key, whole[key])
    with Simulated(part, ["heft", "local-search"], 0, workers=0) as again:
        again.budgets("evaluations", (1, 3), some, limit_s=60)
    assert again.asked == 2
    assert {key: part[key].value for key in part} == {key: whole[key].value for key in whole}


def test_what_there_is_no_time_for_is_left_for_the_next_run():
    journal = Journal()
    with Simulated(journal, ["heft"], 0, workers=0) as simulated:
        assert simulated.budgets("seconds", (1, 3), cases(2), limit_s=0) == {1: 0, 3: 0}
        assert not journal
        simulated.reference(cases(2), 0.05, limit_s=0)
        assert not journal


def test_the_reference_is_bounded_from_below(tmp_path):
    journal = Journal(tmp_path / "answers.jsonl")
    with Simulated(journal, [], 0, workers=0) as simulated:
        simulated.reference(cases(2, ops=6), 0.1, limit_s=60)
    assert len(journal) == 2
    assert all(0 < found.bound <= found.value * (1 + 1e-9) for found in journal.values())


def test_a_problem_counts_where_every_placer_is_decided_about():
    values = {
        "annealing": {1: {"p": 2.0, "q": 4.0}, 3: {"p": 2.0}},
        "hdp": {1: {"p": 3.0, "q": None}},
    }
    table = Table.of("simulated", "seconds", "some", (1, 3), values, {"p": 2.0, "q": 4.0}, "annealing")
    assert table.counts == {1: 2, 3: 0}
    assert table.regrets[1] == {"annealing": {"p": 0.0, "q": 0.0}, "hdp": {"p": 0.5}}
    report = Report()
    points = tell([table], report, 0)
    assert report.rows[0]["1 s"] == "0.0 [0.0, 0.0]"
    assert report.rows[1]["1 s"] == "50.0 (1 of 2)"
    assert "3 s" not in report.rows[0]
    assert report.rows[2]["front"] == "annealing"
    assert (report.rows[2]["best_learned"], report.rows[2]["learning_pays"]) == ("hdp", None)
    assert [(point["placer"], point["regret"], point["of"]) for point in points] == [("annealing", 0.0, 2), ("hdp", 0.5, 2)]


@pytest.mark.parametrize("name", ["giph", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != "giph")])
def test_a_family_is_the_same_for_the_same_seed_and_begins_with_its_larger_problems(name):
    found, again = family(name, 3, seed=3), family(name, 3, seed=3)
    assert len({case.name for case in found}) == 3
    assert [case.name for case in found] == [case.name for case in again]
    sizes = [case.problem.compute.size for case in found]
    assert min(sizes[:2]) >= np.median(sizes)
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one.problem.compute, other.problem.compute)
        somewhere = one.problem.feasible.argmax(axis=1).astype(np.int32)
        assert np.isfinite(one.cost()(somewhere[None])).all()


def test_results_of_a_part_that_is_not_run_stay(tmp_path):
    def part(text):
        origin = {"command": "python -m benchmarks.anytime", "commits": ["abc"], "seed": 0, "note": "", "plan": [text]}
        machine = {"cpu": "a CPU", "cores": 2, "python": "3", "libraries": {}}
        return origin | {"machine": machine, "rows": [{"problems": "some", "placer": "heft", "1 s": "0.0"}], "points": []}

    write_results(tmp_path, {"simulated": part("plan A"), "measured": part("plan B")})
    write_results(tmp_path, {"measured": part("plan C")})
    text = (tmp_path / "report.md").read_text()
    assert [word in text for word in ("plan A", "plan B", "plan C")] == [True, False, True]
    assert "| heft | 0.0 |" in text
    assert json.loads((tmp_path / "report.json").read_text())["parts"].keys() == {"simulated", "measured"}


def test_placers_that_were_never_asked_have_no_row():
    values = {"annealing": {1: {"p": 2.0}}, "hdp": {}}
    table = Table.of("simulated", "seconds", "some", (1,), values, {"p": 2.0}, "annealing")
    assert table.counts == {1: 1}
    assert table.regrets[1] == {"annealing": {"p": 0.0}}


def test_a_placer_that_does_not_exist_ends_the_benchmark_before_it_begins(tmp_path):
    with pytest.raises(SystemExit, match="nobody"):
        anytime.main(["--placers", "nobody", "--work", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_an_unknown_family_is_told():
    with pytest.raises(UsageError, match="giph, tensor, model"):
        family("other", 1, seed=0)


@pytest.mark.slow
def test_the_benchmark_writes_its_results_and_goes_on_from_them(tmp_path, capsys, monkeypatch):
    sizes = replace(anytime.QUICK, problems=1, seconds=(0.05,), evaluations=(1, 3), reference=0.05)
    monkeypatch.setattr(anytime, "QUICK", sizes)
    words = [
        "--quick",
        "--json",
        "--part",
        "simulated",
        "--minutes",
        "60",
        "--workers",
        "0",
        "--placers",
        "heft",
        "annealing",
        "giph",
    ]
    words += ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    anytime.main(words)
    first = json.loads(capsys.readouterr().out)
    assert {row["problems"] for row in first["rows"] if "problems" in row} == {"giph", "tensor", "model", "all"}
    assert [row["decision"] for row in first["rows"] if "decision" in row][-1] == "simulated, all"
    assert {point["placer"] for point in first["points"]} == {"heft", "annealing", "giph"}
    journal = (tmp_path / "work" / "simulated.jsonl").read_text()
    anytime.main(words)
    again = json.loads(capsys.readouterr().out)
    assert (tmp_path / "work" / "simulated.jsonl").read_text() == journal
    assert (again["rows"], again["points"]) == (first["rows"], first["points"])
    text = (tmp_path / "results" / "report.md").read_text()
    assert "python -m benchmarks.anytime --quick --minutes 60 --part simulated" in text
    assert "### Decision" in text


@pytest.mark.slow
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_measured_answers_are_raced_and_kept(small_file, tmp_path):
    cores = tuple(sorted(allowed_cores())[:2])
    setting = Setting("small, slowed", lambda: backends.load(small_file), unequal_cores(cores, 2))

    def asked():
        return Measured(Journal(tmp_path / "measured.jsonl"), ["single", "heft", "local-search"], 0, Cache(tmp_path / "costs"))

    measured = asked()
    assert measured.budgets((2,), [setting], limit_s=120) == {2: 1}
    measured.race(setting, (2,))
    answers = [measured.runs(setting.name, placer, (2,)).get(2) for placer in (CALIBRATED, "single", "heft", "local-search")]
    assert all(found is not None for found in answers)
    raced = {found.devices: measured.raced(setting.name, found.devices) for found in answers if found.devices}
    assert raced
    assert all(value > 0 for value in raced.values())
    values = placed_values(measured, [setting.name], measured.contenders, (2,))
    assert {value for some in values.values() for value in some[2].values()} <= {None, *raced.values()}

    again = asked()
    journal = dict(again.journal)
    again.budgets((2,), [setting], limit_s=120)
    again.race(setting, (2,))
    assert dict(again.journal) == journal == dict(measured.journal)
