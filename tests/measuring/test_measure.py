from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._harness import timed
from placeit.core import clock
from placeit.core.errors import DeviceError, ExecutionError, UsageError
from placeit.measuring import statistics
from placeit.measuring.measure import Race
from placeit.measuring.statistics import FEWEST, Measurement, Ratio, faster, faster_in_any_opening, median_interval


class Machine:
    """Candidates with known times, on a machine whose speed drifts; it remembers what ran."""

    def __init__(self, drift: Callable[[int], float] = lambda run: 1.0) -> None:
        self.ran: list[str] = []
        self.drift = drift

    def candidate(self, name: str, seconds: float, noise: float = 0.0) -> Callable[[], float]:
        random = np.random.default_rng(ord(name[0]))

        def run() -> float:
            self.ran.append(name)
            return seconds * self.drift(len(self.ran)) * (1 + noise * random.standard_normal())

        return run


def constant(name: str, samples: list[float]) -> Measurement:
    values: Iterator[float] = iter(samples)
    return Race({name: lambda: next(values)}, warmup=0).run(rounds=len(samples))[name]


def test_every_round_runs_every_candidate_once_and_orders_differ() -> None:
    machine = Machine()
    Race({name: machine.candidate(name, 1.0) for name in "abc"}, warmup=0).run(rounds=20)
    rounds = ["".join(machine.ran[i : i + 3]) for i in range(0, 60, 3)]
    assert {"".join(sorted(order)) for order in rounds} == {"abc"}
    assert len(set(rounds)) > 3


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    def order(seed: int) -> list[str]:
        machine = Machine()
        Race({name: machine.candidate(name, 1.0) for name in "abcd"}, seed=seed).run(rounds=10)
        return machine.ran

    assert order(1) == order(1) != order(2)


def test_warm_up_runs_are_not_counted() -> None:
    slow_at_first = iter([100.0, 100.0, *[1.0] * 8])
    (result,) = Race({"a": lambda: next(slow_at_first)}, warmup=2).run(rounds=8).values()
    assert result.samples.tolist() == [1.0] * 8
    assert (result.median, result.ci_low, result.ci_high, result.p95) == (1.0, 1.0, 1.0, 1.0)


def test_a_measurement_has_median_interval_and_percentile_of_its_samples() -> None:
    samples = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0, 9.0, 8.0]
    result = constant("a", samples)
    assert result.samples.tolist() == samples
    assert result.rounds.tolist() == list(range(9))
    assert result.median == 5.0
    assert 1.0 <= result.ci_low < 5.0 < result.ci_high <= 9.0
    assert result.p95 == pytest.approx(8.6)


@pytest.mark.parametrize("samples", range(1, FEWEST))
def test_too_few_samples_have_no_interval(samples: int) -> None:
    result = constant("a", [1.0] * samples)
    assert (result.ci_low, result.ci_high) == (0.0, float("inf"))


def test_candidates_that_are_far_behind_are_dropped_and_keep_their_samples() -> None:
    machine = Machine()
    runner = Race({name: machine.candidate(name, seconds, 0.01) for name, seconds in zip("abcd", [2, 1, 1.01, 9], strict=True)})
    results = runner.run(rounds=30)
    assert runner.running == ("b", "c")
    assert len(results["a"].samples) == len(results["d"].samples) == 6
    assert len(results["b"].samples) == len(results["c"].samples) == 30


def test_two_candidates_always_stay() -> None:
    machine = Machine()
    runner = Race({"a": machine.candidate("a", 1.0), "b": machine.candidate("b", 50.0)})
    runner.run(rounds=20)
    assert runner.running == ("a", "b")


def test_nobody_is_dropped_if_nobody_shall_be() -> None:
    machine = Machine()
    runner = Race({name: machine.candidate(name, float(ord(name))) for name in "abcz"})
    runner.run(rounds=20, drop_losers=False)
    assert runner.running == tuple("abcz")


def test_drift_of_the_machine_does_not_decide() -> None:
    # every second stretch of ten runs is three times slower, and 'b' is 10 % faster throughout
    machine = Machine(lambda run: 3.0 if run // 10 % 2 else 1.0)
    results = Race({"a": machine.candidate("a", 1.0, 0.01), "b": machine.candidate("b", 0.9, 0.01)}).run(rounds=60)
    ratio = faster(results["b"], results["a"])
    assert ratio.faster
    assert 0.85 < ratio.ci_low < ratio.ratio < ratio.ci_high < 0.95
    assert not faster(results["a"], results["b"]).faster


def at_most(share: float, count: int) -> float:
    """Hits that one does not see more of in 10,000 such tests, if a share of the trials hits."""
    return count * share + 4 * math.sqrt(count * share * (1 - share))


def pairs(noise: Callable[[np.random.Generator, int], np.ndarray], rounds: int, count: int) -> Iterator[Ratio]:
    """Ratios of equal candidates that take turns in random order on one machine with that noise."""
    random = np.random.default_rng(rounds)
    for _ in range(count):
        runs = np.exp(noise(random, 2 * rounds)).reshape(rounds, 2)
        runs = random.permuted(runs, axis=1)
        a, b = (Measurement(name, column, np.arange(rounds), 1, 1, 1, 1) for name, column in zip("ab", runs.T, strict=True))
        yield faster(a, b)


def drifting(random: np.random.Generator, runs: int) -> np.ndarray:
    """Noise of 10 % of which every run keeps four fifths of the run before."""
    noise = random.normal(0, 0.1, runs)
    for i in range(1, runs):
        noise[i] = 0.8 * noise[i - 1] + 0.6 * noise[i]
    return noise


NOISES = {
    "log-normal": lambda random, runs: random.normal(0, 0.1, runs),
    "heavy": lambda random, runs: 0.05 * random.standard_t(1.5, runs),
    "one-sided": lambda random, runs: random.exponential(0.3, runs) * (random.random(runs) < 0.2),
    "drifting": drifting,
}


@pytest.mark.parametrize("rounds", [6, 7, 24, 70])
@pytest.mark.parametrize("noise", NOISES)
def test_equal_candidates_are_called_faster_as_rarely_as_is_said(noise: str, rounds: int) -> None:
    count = 1000
    ratios = list(pairs(NOISES[noise], rounds, count))
    assert sum(ratio.faster for ratio in ratios) <= at_most(0.0175, count)
    assert sum(not ratio.ci_low <= 1 <= ratio.ci_high for ratio in ratios) <= at_most(0.035, count)


@pytest.mark.parametrize("rounds", [6, 9, 13])
def test_the_interval_of_a_ratio_ends_where_flipping_signs_gives_so_low_a_rank_sum_too_often(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    logs = random.normal(-0.1, 0.2, rounds)
    a, b = (Measurement("ab", values, np.arange(rounds), 1, 1, 1, 1) for values in (np.exp(logs), np.ones(rounds)))
    flips = np.array(list(itertools.product([0, 1], repeat=rounds)))
    ratio = faster(a, b)
    for end, side in ((ratio.ci_high, 1), (ratio.ci_low, -1)):
        chances = []
        for supposed in (np.log(end) - 1e-9, np.log(end) + 1e-9):
            shifted = side * (logs - supposed)
            ranks = np.argsort(np.argsort(abs(shifted))) + 1
            chances.append((flips @ ranks <= ranks[shifted > 0].sum()).mean())
        assert min(chances) <= 0.0175 < max(chances)


def test_the_interval_of_many_rounds_is_nearly_that_of_the_exact_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    a, b = (Measurement(name, random.lognormal(0, 0.1, 100), np.arange(100), 1, 1, 1, 1) for name in "ab")
    near = faster(a, b)
    monkeypatch.setattr(statistics, "_MAX_EXACT", 200)
    statistics._position.cache_clear()
    exact = faster(a, b)
    statistics._position.cache_clear()
    assert (near.ci_low, near.ci_high) == pytest.approx((exact.ci_low, exact.ci_high), rel=1e-3)


def test_thousands_of_rounds_are_compared() -> None:
    random = np.random.default_rng(0)
    a, b = (
        Measurement(name, scale * random.lognormal(0, 0.1, 5000), np.arange(5000), 1, 1, 1, 1)
        for name, scale in (("a", 0.99), ("b", 1.0))
    )
    ratio = faster(a, b)
    assert 0.98 < ratio.ci_low < 0.99 < ratio.ci_high < 1


def test_a_value_of_zero_is_less_than_any_other() -> None:
    a = Measurement("a", np.zeros(8), np.arange(8), 0, 0, 0, 0)
    b = Measurement("b", np.ones(8), np.arange(8), 1, 1, 1, 1)
    assert (faster(a, b).ratio, faster(a, b).ci_high) == (0.0, 0.0)
    assert faster(a, a) == Ratio(1.0, 1.0, 1.0)


def test_only_common_rounds_are_compared() -> None:
    a = Measurement("a", np.array([9.0] * 3 + [1.0] * 8), np.arange(11), 1, 1, 1, 1)
    b = Measurement("b", np.array([2.0] * 8), np.arange(3, 11), 2, 2, 2, 2)
    ratio = faster(a, b)
    assert (ratio.ratio, ratio.ci_low, ratio.ci_high, ratio.faster) == (0.5, 0.5, 0.5, True)


def test_a_comparison_needs_common_rounds() -> None:
    a = Measurement("a", np.ones(2), np.arange(2), 1, 1, 1, 1)
    b = Measurement("b", np.ones(2), np.arange(2, 4), 1, 1, 1, 1)
    with pytest.raises(ExecutionError, match="never measured in the same round"):
        faster(a, b)
    assert not faster(a, a).faster, "two rounds say nothing"


@pytest.mark.parametrize("n", [6, 7, 8, 9, 25, 100])
def test_the_interval_covers_the_median_of_any_distribution_as_often_as_it_says(n: int) -> None:
    random = np.random.default_rng(n)
    intervals = [median_interval(random.lognormal(0, 1, n)) for _ in range(2000)]
    assert sum(not low <= 1 <= high for low, high in intervals) <= at_most(0.05, 2000)


@given(st.lists(st.floats(1e-9, 1e6), min_size=FEWEST, max_size=60))
def test_the_interval_contains_the_median_and_ends_at_samples(samples: list[float]) -> None:
    low, high = median_interval(samples)
    assert low <= np.median(samples) * (1 + 1e-12)
    assert np.median(samples) * (1 - 1e-12) <= high
    assert {low, high} <= set(samples)
    assert (low, high) == median_interval(samples[::-1])


# --- the end of a race


def test_a_budget_ends_the_race_after_the_least_number_of_rounds() -> None:
    machine = Machine()
    results = Race({"a": machine.candidate("a", 1.0)}, warmup=0).run(budget_s=0, min_rounds=9)
    assert len(results["a"].samples) == 9


def test_a_round_that_would_not_end_in_time_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])

    def ten_seconds() -> float:
        now[0] += 10.0
        return 10.0

    results = Race({"a": ten_seconds}, warmup=1).run(budget_s=95, min_rounds=2)
    assert len(results["a"].samples) == 8, "and one warm-up: 90 of 95 seconds"


def test_a_race_needs_candidates_and_an_end() -> None:
    with pytest.raises(UsageError, match="no candidates"):
        Race({})
    with pytest.raises(UsageError, match="needs an end"):
        Race({"a": lambda: 1.0}).run()


def test_progress_is_told_after_each_round() -> None:
    told: list[tuple[int, float]] = []
    Race({"a": lambda: 1.0}).run(rounds=4, progress=lambda done, share: told.append((done, share)))
    assert told == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    Race({"a": lambda: 1.0}).run(budget_s=0, min_rounds=1, progress=lambda done, share: told.append((done, share)))
    assert told[-1] == (1, 1.0)


# --- failures


@pytest.mark.parametrize("cause", [RuntimeError("no memory"), DeviceError("gone"), MemoryError(), ValueError("shape")])
def test_a_failed_run_is_an_error_with_its_cause_and_earlier_samples_stay(cause: Exception) -> None:
    outcomes = iter([1.0, 1.0, cause])

    def fails_later() -> float:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    runner = Race({"good": lambda: 2.0, "bad": fails_later}, warmup=0)
    with pytest.raises(ExecutionError, match="A run of 'bad' failed") as caught:
        runner.run(rounds=10)
    assert caught.value.__cause__ is cause
    assert runner.results()["bad"].samples.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("failing", [{"bad"}, {"good", "bad", "other"}])
def test_a_race_whose_losers_are_told_of_goes_on_without_those_that_fail(failing: set[str]) -> None:
    left: dict[str, ExecutionError | None] = {}
    runs: dict[str, int] = {}

    def candidate(name: str, seconds: float) -> Callable[[], float]:
        def run() -> float:
            runs[name] = runs.get(name, 0) + 1
            if name in failing and runs[name] == 4:
                raise DeviceError("gone")
            return seconds

        return run

    candidates = {name: candidate(name, 1.0) for name in ("good", "bad", "other")} | {"far": candidate("far", 9.0)}
    runner = Race(candidates, warmup=2, leave=left.__setitem__)
    results = runner.run(rounds=10)
    if len(failing) > 1:
        assert results.keys() == {"good", "bad", "other", "far"}
        assert runner.running == ("far",)
    else:
        assert runner.running == ("good", "other")
        assert left.pop("far") is None
    assert {name: str(error) for name, error in left.items()} == {name: f"A run of '{name}' failed: gone" for name in failing}
    assert all(runs[name] == 4 and len(results[name].samples) == 1 for name in failing)


def test_a_race_that_all_leave_ends() -> None:
    left: list[str] = []
    runner = Race({"a": lambda: 0.0, "b": lambda: 0.0}, leave=lambda name, _: left.append(name))
    assert runner.run(rounds=9) == {}
    assert sorted(left) == ["a", "b"]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_no_run_can_take_is_an_error(seconds: float) -> None:
    with pytest.raises(ExecutionError, match="'odd'"):
        Race({"odd": lambda: seconds}).run(rounds=1)


def test_ctrl_c_ends_the_race_and_keeps_what_was_measured() -> None:
    presses = iter([False] * 7 + [True] + [False] * 9)

    def run() -> float:
        if next(presses):
            raise KeyboardInterrupt
        return 1.0

    runner = Race({"a": run}, warmup=0)
    with pytest.raises(KeyboardInterrupt):
        runner.run(rounds=50)
    assert len(runner.results()["a"].samples) == 7
    runner.run(rounds=9)
    result = runner.results()["a"]
    assert len(result.samples) == 16
    assert len(set(result.rounds.tolist())) == 16


def test_an_interrupt_before_the_first_sample_leaves_no_result() -> None:
    def run() -> float:
        raise KeyboardInterrupt

    runner = Race({"a": run})
    with pytest.raises(KeyboardInterrupt):
        runner.run(rounds=1)
    assert runner.results() == {}


def test_any_callable_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += 0.25

    assert timed(work)() == 0.25


def test_an_interval_for_any_opening_is_wider_by_what_openings_change_and_nothing_differs_from_itself() -> None:
    b = constant("b", list(np.linspace(1.0, 1.1, 30)))
    a = constant("a", list(0.99 * b.samples))
    assert faster(a, b).faster
    ratio = faster_in_any_opening(a, b)
    assert not ratio.faster  # 1 % is less than two openings may differ by
    np.testing.assert_allclose(np.log([ratio.ci_low, ratio.ci_high]), np.log(0.99) + 1.96 * 0.007 * np.array([-1, 1]))
    noisy = constant("noisy", list(b.samples * np.exp(np.random.default_rng(0).normal(0, 0.1, 30))))
    inner, outer = faster(noisy, b), faster_in_any_opening(noisy, b)
    assert outer.ratio == inner.ratio
    assert outer.ci_low < inner.ci_low
    assert outer.ci_high > inner.ci_high
    same = faster_in_any_opening(b, b)
    assert (same.ratio, same.ci_low, same.ci_high) == (1, 1, 1)
    few = constant("few", list(b.samples[:3]))
    assert faster_in_any_opening(few, b).ci_high == np.inf
