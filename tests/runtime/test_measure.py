from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.errors import DeviceError, ExecutionError, UsageError
from placeit.runtime.measure import FEWEST, Measurement, Race, faster, median_interval, race, timed


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
    return race({name: lambda: next(values)}, rounds=len(samples), warmup=0)[name]


def test_every_round_runs_every_candidate_once_and_orders_differ() -> None:
    machine = Machine()
    race({name: machine.candidate(name, 1.0) for name in "abc"}, rounds=20, warmup=0)
    rounds = ["".join(machine.ran[i : i + 3]) for i in range(0, 60, 3)]
    assert {"".join(sorted(order)) for order in rounds} == {"abc"}
    assert len(set(rounds)) > 3


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    def order(seed: int) -> list[str]:
        machine = Machine()
        race({name: machine.candidate(name, 1.0) for name in "abcd"}, rounds=10, seed=seed)
        return machine.ran

    assert order(1) == order(1) != order(2)


def test_warm_up_runs_are_not_counted() -> None:
    slow_at_first = iter([100.0, 100.0, *[1.0] * 8])
    (result,) = race({"a": lambda: next(slow_at_first)}, rounds=8, warmup=2).values()
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
    results = race({"a": machine.candidate("a", 1.0, 0.01), "b": machine.candidate("b", 0.9, 0.01)}, rounds=60)
    ratio = faster(results["b"], results["a"])
    assert ratio.faster
    assert 0.85 < ratio.ci_low < ratio.ratio < ratio.ci_high < 0.95
    assert not faster(results["a"], results["b"]).faster


def test_equal_candidates_are_rarely_called_faster() -> None:
    wrong = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        rounds = np.arange(15)
        a, b = (Measurement(name, random.lognormal(0, 0.1, 15), rounds, 1.0, 0.9, 1.1, 1.2) for name in "ab")
        wrong += faster(a, b).faster
    assert wrong <= 14  # 2.5 % is nominal on this side; the percentile bootstrap of a median errs a little more often


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


@pytest.mark.parametrize("n", [6, 7, 12, 25])
def test_the_interval_agrees_with_resamples_drawn_in_full(n: int) -> None:
    random = np.random.default_rng(n)
    samples = random.lognormal(0, 0.3, n)
    medians = np.median(samples[random.integers(0, n, (40_000, n))], axis=1)
    expected = np.quantile(medians, [0.025, 0.975])
    # both are quantiles of random draws: compare how much of the full distribution lies below each end
    low, high = median_interval(samples)
    assert (medians < low).mean() <= 0.035
    assert (medians <= low).mean() >= 0.015
    assert (medians < high).mean() <= 0.985
    assert (medians <= high).mean() >= 0.965
    assert low < expected.mean() < high


@given(st.lists(st.floats(1e-9, 1e6), min_size=FEWEST, max_size=60), st.integers(0, 2**32))
def test_the_interval_contains_the_median_and_stays_inside_the_samples(samples: list[float], seed: int) -> None:
    low, high = median_interval(samples, seed=seed)
    assert min(samples) <= low <= np.median(samples) * (1 + 1e-12)
    assert np.median(samples) * (1 - 1e-12) <= high <= max(samples)
    assert (low, high) == median_interval(samples[::-1], seed=seed)


# --- the end of a race


def test_a_budget_ends_the_race_after_the_least_number_of_rounds() -> None:
    machine = Machine()
    results = race({"a": machine.candidate("a", 1.0)}, budget_s=0, min_rounds=9, warmup=0)
    assert len(results["a"].samples) == 9


def test_a_round_that_would_not_end_in_time_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def ten_seconds() -> float:
        clock[0] += 10.0
        return 10.0

    results = race({"a": ten_seconds}, budget_s=95, min_rounds=2, warmup=1)
    assert len(results["a"].samples) == 8, "and one warm-up: 90 of 95 seconds"


def test_a_race_needs_candidates_and_an_end() -> None:
    with pytest.raises(UsageError, match="no candidates"):
        Race({})
    with pytest.raises(UsageError, match="needs an end"):
        race({"a": lambda: 1.0})


def test_progress_is_told_after_each_round() -> None:
    told: list[tuple[int, float]] = []
    race({"a": lambda: 1.0}, rounds=4, progress=lambda done, share: told.append((done, share)))
    assert told == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    race({"a": lambda: 1.0}, budget_s=0, min_rounds=1, progress=lambda done, share: told.append((done, share)))
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


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_no_run_can_take_is_an_error(seconds: float) -> None:
    with pytest.raises(ExecutionError, match="'odd'"):
        race({"odd": lambda: seconds}, rounds=1)


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
