"""Races by blocks of runs: each candidate runs for a while by itself, and its first runs do not count."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from placeit.core import clock
from placeit.core.errors import ExecutionError, UsageError
from placeit.measuring.blocks import BLOCK_S
from placeit.measuring.measure import Race
from placeit.measuring.pace import Pace
from placeit.measuring.statistics import FEWEST, faster

FAST, COLD = 0.001, (4.0, 2.5, 1.5)


@dataclass
class Machine:
    """A machine with a simulated clock, whose caches hold the data of the candidate that ran last.

    Attributes:
        cold: factors on the times of the first runs after another candidate.
        noise: standard deviation of the logarithm of a time.
        correlated: correlation of the noise of consecutive runs.
    """

    cold: tuple[float, ...] = COLD
    noise: float = 0.0
    correlated: float = 0.0
    seed: int = 0
    now: float = 0.0
    ran: list[str] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def candidate(self, name: str, seconds: float = FAST) -> Callable[[], float]:
        def run() -> float:
            self.starts.append(self.now)
            self.ran.append(name)
            since = len(list(itertools.takewhile(name.__eq__, reversed(self.ran)))) - 1
            fresh = self.noise * float(self._random.standard_normal())
            self._last = self.correlated * self._last + math.sqrt(1 - self.correlated**2) * fresh
            took = seconds * (self.cold[since] if since < len(self.cold) else 1.0) * math.exp(self._last)
            self.now += took
            return took

        return run

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def blocks(self) -> list[tuple[str, int]]:
        return [(name, len(list(runs))) for name, runs in itertools.groupby(self.ran)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(clock, "now", lambda: made.now)
    return made


def test_a_candidate_is_judged_by_its_steady_runs(machine: Machine) -> None:
    found = Race({"a": machine.candidate("a"), "b": machine.candidate("b", 2 * FAST)}).run(rounds=8)
    assert found["a"].samples.tolist() == pytest.approx([FAST] * 8)
    assert found["b"].samples.tolist() == pytest.approx([2 * FAST] * 8)
    assert found["a"].p95 == pytest.approx(FAST)
    assert found["a"].runs == 8 * (BLOCK_S / FAST + 1)


def test_the_first_of_two_candidates_that_differ_only_when_cold_is_no_faster(machine: Machine) -> None:
    other = Machine(cold=(9.0, 9.0))
    other.ran = machine.ran  # the same machine
    found = Race({"a": machine.candidate("a"), "b": other.candidate("b")}).run(rounds=8)
    assert faster(found["a"], found["b"]).ratio == pytest.approx(1.0)


def test_blocks_are_in_a_random_order_in_which_each_candidate_is_as_often_first(machine: Machine) -> None:
    names = "abc"
    race = Race({name: machine.candidate(name, 0.06) for name in names}, warmup=1)
    race.warm_up()
    machine.ran.clear()
    race.run(rounds=300)
    rounds = ["".join(machine.ran[i : i + 3]) for i in range(0, 900, 3)]  # slow runs are blocks by themselves
    assert {"".join(sorted(order)) for order in rounds} == {names}
    for order in itertools.permutations(names):
        assert 25 < rounds.count("".join(order)) < 80  # 50 on average, with a deviation of 6.5


def test_a_block_is_as_long_as_its_runs_are_short(machine: Machine) -> None:
    race = Race({"fast": machine.candidate("fast"), "slower": machine.candidate("slower", 0.015)})
    race.warm_up()
    machine.ran.clear()
    race.run(rounds=1)
    assert dict(machine.blocks()) == {"fast": 3 + 21, "slower": 3 + 3}


@pytest.mark.parametrize(("noise", "correlated"), [(0.1, 0.0), (0.1, 0.8), (0.02, 0.0)])
@pytest.mark.parametrize("rounds", [6, 9])
def test_of_two_equal_candidates_the_first_is_called_faster_as_rarely_as_is_said(
    monkeypatch: pytest.MonkeyPatch, noise: float, correlated: float, rounds: int
) -> None:
    trials, called = 300, 0
    for seed in range(trials):
        machine = Machine(noise=noise, correlated=correlated, seed=seed)
        monkeypatch.setattr(clock, "now", lambda machine=machine: machine.now)
        found = Race({name: machine.candidate(name, 0.008) for name in "ab"}, seed=seed).run(rounds=rounds)
        called += faster(found["a"], found["b"]).faster
    assert called <= 0.0175 * trials + 3.1 * math.sqrt(0.0175 * 0.9825 * trials)


def test_equal_candidates_leave_out_as_many_runs_whatever_their_trials_showed(machine: Machine) -> None:
    machine.cold, machine.noise = (1.8, 1.24, 1.07, 1.02), 0.1
    race = Race({name: machine.candidate(name, 0.005) for name in "abcde"})
    race.warm_up()
    machine.ran.clear()
    race.run(rounds=1)
    skipped = {runs - len(race.counted(name)[0]) for name, runs in machine.blocks()}
    assert len(skipped) == 1


def test_a_candidate_whose_times_vary_more_is_not_favoured_by_the_runs_that_are_left_out(machine: Machine) -> None:
    noisy = Machine(cold=(), noise=0.2, seed=1)
    steady = Machine(cold=())
    found = Race({"noisy": noisy.candidate("noisy", 0.01), "steady": steady.candidate("steady", 0.01)}).run(rounds=400)
    ratio = faster(found["noisy"], found["steady"])
    assert ratio.ci_low < 1 < ratio.ci_high


def test_the_budget_is_kept_but_for_one_round(machine: Machine) -> None:
    race = Race({name: machine.candidate(name) for name in "ab"})
    race.run(budget_s=1.0, min_rounds=2)
    assert 0.9 < machine.now < 1.0
    long = machine.now
    race.run(budget_s=1.0, min_rounds=0)
    assert machine.now < long + 1.0


def test_an_interrupt_keeps_the_samples_of_the_blocks_that_were_completed(machine: Machine) -> None:
    run, left = machine.candidate("b"), iter(range(200))

    def interrupted() -> float:
        if next(left) == 80:
            raise KeyboardInterrupt
        return run()

    race = Race({"a": machine.candidate("a"), "b": interrupted})
    with pytest.raises(KeyboardInterrupt):
        race.run(rounds=20)
    before = {name: one.samples.tolist() for name, one in race.results().items()}
    assert before["b"]
    assert abs(len(before["a"]) - len(before["b"])) <= 1
    after = race.run(rounds=1)
    assert after["a"].samples.tolist()[: len(before["a"])] == before["a"]
    assert after["b"].samples.tolist()[:-1] == pytest.approx(before["b"])


def test_a_candidate_that_nothing_takes_turns_with_has_a_sample_of_each_run(machine: Machine) -> None:
    found = Race({"a": machine.candidate("a")}, warmup=3).run(rounds=10)
    assert len(machine.ran) == 13
    assert found["a"].samples.tolist() == pytest.approx([FAST] * 10)


def test_the_runs_of_each_sample_are_known_by_their_numbers(machine: Machine) -> None:
    seconds: list[float] = []
    run = machine.candidate("a")

    def kept() -> float:
        seconds.append(run())
        return seconds[-1]

    race = Race({"a": kept, "b": machine.candidate("b")})
    found = race.run(rounds=4)
    for sample, runs in zip(found["a"].samples, race.counted("a"), strict=True):
        assert np.median(seconds[runs.start : runs.stop]) == sample
        assert len(runs) == 21


def test_what_is_warm_counts_from_the_first_run_if_that_is_slow(machine: Machine) -> None:
    found = Race({name: machine.candidate(name, 0.1) for name in "ab"}, warmup=0).run(rounds=3)
    assert len(machine.ran) == 6
    assert len(found["a"].samples) == 3


def test_what_is_warm_and_fast_is_tried_in_its_first_round(machine: Machine) -> None:
    found = Race({name: machine.candidate(name) for name in "ab"}, warmup=0).run(rounds=3)
    assert found["b"].samples.tolist() == pytest.approx([FAST] * 3)


def test_a_candidate_rests_after_each_of_its_blocks(machine: Machine) -> None:
    rested: list[tuple[str, str]] = []
    race = Race({name: machine.candidate(name) for name in "ab"}, rest=lambda name: rested.append((name, machine.ran[-1])))
    race.run(rounds=3)
    assert len(rested) == 8  # the trials as well
    assert all(name == ran for name, ran in rested)


class Watch:
    """Says of one round after the other whether it was disturbed."""

    def __init__(self, disturbed: Iterator[bool]) -> None:
        self.begun, self._disturbed = 0, disturbed

    def begin(self) -> None:
        self.begun += 1

    def disturbed(self) -> bool:
        return next(self._disturbed)


def raced(machine: Machine, disturbed: Iterator[bool], **length: float) -> tuple[Race, dict[str, list[float]]]:
    """Race two candidates, of which runs in disturbed rounds take longer."""
    said = list(itertools.islice(disturbed, 100))
    watch = Watch(iter(said))

    def slowed(name: str) -> Callable[[], float]:
        run = machine.candidate(name, 0.1)
        return lambda: run() * (3.0 if watch.begun and said[watch.begun - 1] else 1.0)

    race = Race({name: slowed(name) for name in "ab"}, watch=watch)
    found = race.run(**length)  # type: ignore[arg-type]
    return race, {name: one.samples.tolist() for name, one in found.items()}


def test_disturbed_rounds_are_repeated_and_do_not_count(machine: Machine) -> None:
    machine.cold = ()
    race, samples = raced(machine, itertools.cycle([True, False]), rounds=8)
    assert samples["a"] == pytest.approx([0.1] * 8)
    assert (race.disturbed, race.left_out) == (0, 8)


def test_after_an_early_failure_of_a_candidate_disturbed_rounds_of_the_others_do_not_count(machine: Machine) -> None:
    machine.cold = ()
    watch = Watch(itertools.cycle([True, False]))
    good = machine.candidate("a", 0.1)

    def failing() -> float:
        if watch.begun > 1:
            raise ExecutionError("the device is gone")
        return 0.1

    race = Race(
        {"a": lambda: good() * (3.0 if watch.begun % 2 else 1.0), "b": failing}, leave=lambda name, error: None, watch=watch
    )
    found = race.run(rounds=8)
    assert found["a"].samples.tolist() == pytest.approx([0.1] * 8)
    assert (race.disturbed, race.left_out, len(found["b"].samples)) == (0, 8, 1)


def test_rounds_that_are_always_disturbed_are_repeated_once_each_and_count(machine: Machine) -> None:
    machine.cold = ()
    race, samples = raced(machine, itertools.repeat(True), rounds=8)
    assert samples["a"] == pytest.approx([0.3] * 8)
    assert (race.disturbed, race.left_out) == (8, 8)


def test_without_time_to_repeat_them_disturbed_rounds_count_and_intervals_are_wider(machine: Machine) -> None:
    machine.cold = ()
    race, samples = raced(machine, itertools.cycle([True, False]), rounds=8, budget_s=2.45, min_rounds=2)
    assert len(samples["a"]) == 10
    assert race.disturbed == 5 < FEWEST
    assert race.left_out == 0
    low, high = race.results()["a"].ci_low, race.results()["a"].ci_high
    assert (low, high) == (pytest.approx(0.1), pytest.approx(0.3))


def test_of_as_many_rounds_as_there_is_time_for_disturbed_ones_do_not_count(machine: Machine) -> None:
    machine.cold = ()
    race, samples = raced(machine, itertools.cycle([True, False]), budget_s=6.0)
    assert samples["a"] == pytest.approx([0.1] * len(samples["a"]))
    assert race.left_out in (len(samples["a"]), len(samples["a"]) + 1)


def test_of_few_rounds_none_is_repeated(machine: Machine) -> None:
    machine.cold = ()
    race, samples = raced(machine, itertools.repeat(True), rounds=FEWEST - 1)
    assert len(samples["a"]) == FEWEST - 1 == race.disturbed


def test_short_rounds_are_watched_together(machine: Machine) -> None:
    watch = Watch(itertools.chain([False, True], itertools.repeat(False)))
    race = Race({"a": machine.candidate("a")}, watch=watch)
    found = race.run(rounds=50)
    assert len(found["a"].samples) == 50
    assert watch.begun == 4
    assert 15 < race.left_out < 25
    left_out = sorted(set(range(50 + race.left_out)) - set(found["a"].rounds.tolist()))
    assert left_out == list(range(left_out[0], left_out[-1] + 1))


def test_runs_start_at_the_pace_of_requests(machine: Machine) -> None:
    pace = Pace(100.0, now=lambda: machine.now, sleep=machine.sleep)
    race = Race({name: machine.candidate(name) for name in "ab"}, pace=pace)
    found = race.run(rounds=4)
    assert found["a"].samples.tolist() == pytest.approx([FAST] * 4)
    gaps = np.diff(machine.starts)
    assert gaps.min() == pytest.approx(0.01)  # a pause comes before the first run of a block as well
    assert (gaps < 0.0101).mean() > 0.7


def test_a_single_candidate_runs_at_the_pace_through_all_its_rounds(machine: Machine) -> None:
    pace = Pace(50.0, now=lambda: machine.now, sleep=machine.sleep)
    Race({"a": machine.candidate("a")}, pace=pace).run(rounds=6)
    assert np.diff(machine.starts) == pytest.approx([0.02] * 7)


def test_runs_that_are_longer_than_a_period_follow_each_other_without_a_pause(machine: Machine) -> None:
    machine.cold = ()
    pace = Pace(100.0, now=lambda: machine.now, sleep=machine.sleep)
    Race({"a": machine.candidate("a", 0.025)}, pace=pace).run(rounds=6)
    assert np.diff(machine.starts) == pytest.approx([0.025] * 7)


def test_one_late_start_does_not_shift_those_after_it() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + 0.003

    pace = Pace(10.0, now=lambda: now, sleep=sleep)
    starts = []
    for _ in range(4):
        pace.wait()
        starts.append(now)
    assert starts == pytest.approx([0.103, 0.203, 0.303, 0.403])


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_pace_is_a_positive_rate(rate: float) -> None:
    with pytest.raises(UsageError):
        Pace(rate)
