"""What serves a candidate's requests: how long runs are, and replicas that run together."""

from __future__ import annotations

import math
import threading
from typing import Any, cast

import pytest

from placeit.core.errors import ExecutionError
from placeit.optimizer.deployed import Deployed, run_lengths
from placeit.planning.segments import Plan
from tests.small_plans import chain


def test_a_run_has_more_requests_the_longer_its_pipeline_takes_to_fill() -> None:
    assert run_lengths([chain(0.1)]) == [4]
    assert run_lengths([chain(0.1, 0.1)]) == [10]
    assert run_lengths([chain(0.1, 0.02)]) == [8]
    assert run_lengths([chain(1e-3)]) == [20]
    assert run_lengths([chain(*[0.1] * 9)]) == [24]


def test_replicas_are_busy_for_equally_long() -> None:
    assert run_lengths([chain(0.1), chain(0.3)]) == [12, 4]
    assert run_lengths([chain(0.3), chain(0.1, 0.1), chain(0.2)]) == [4, 12, 6]


class Fake:
    """Stands in for a deployed plan that reports a given number of seconds per request."""

    in_flight, max_overlapping = 1, math.inf

    def __init__(
        self, seconds: float, *, waits_for: threading.Event | None = None, opens: threading.Event | None = None
    ) -> None:
        self.seconds, self.waits_for, self.opens = seconds, waits_for, opens
        self.counts: list[int] = []
        self.fill, self.alone = 0.0, cast("float | None", None)
        self.closed, self.given_up, self.error = 0, "", None

    def times(self, count: int) -> float:
        if self.opens is not None:
            self.opens.set()
        if self.waits_for is not None:
            assert self.waits_for.wait(120)
        self.counts.append(count)
        if self.error is not None:
            raise self.error
        return self.alone if self.alone is not None and count == 1 else self.fill + self.seconds * count

    def time(self) -> float:
        return self.seconds

    def give_up(self, why: str) -> None:
        self.given_up = why
        if self.waits_for is not None:
            self.waits_for.set()

    def close(self) -> None:
        self.closed += 1


def deployed(*fakes: Fake, plans: list[Plan] | None) -> Deployed:
    return Deployed([lambda fake=fake: cast("Any", fake) for fake in fakes], plans)


def test_what_replicas_serve_adds_up_and_the_next_run_follows_what_they_took() -> None:
    first, second = Fake(0.1), Fake(0.4)
    with deployed(first, second, plans=[chain(0.1), chain(0.1)]) as running:
        assert running.time() == pytest.approx(1 / (10 + 2.5))
        second.seconds = 0.2
        running.time()
        running.time()
    assert (first.counts, second.counts) == ([4, 16, 8], [4, 4, 4])
    assert (first.closed, second.closed) == (1, 1)


def test_filling_a_pipeline_is_no_part_of_what_each_request_takes() -> None:
    first, second = Fake(0.1), Fake(0.2)
    first.fill, second.fill = 0.5, 0.7  # the second is no pipeline by its plan: all of its time counts
    with deployed(first, second, plans=[chain(0.1, 0.1), chain(0.2)]) as running:
        assert running.time() == pytest.approx(1 / (1 / 0.1 + 5 / 1.7))
        first.fill = 60.0  # of one run; the median comes from other runs
        running.time()
        first.fill = 0.5
        assert running.time() == pytest.approx(1 / (1 / 0.1 + second.counts[-1] / (0.7 + 0.2 * second.counts[-1])))
    assert first.counts[:2] == [1, 10]
    assert second.counts[0] == 5


def test_a_pipeline_whose_first_request_was_disturbed_takes_what_its_run_took() -> None:
    only = Fake(0.1)
    with deployed(only, plans=[chain(0.1, 0.1)]) as running:
        only.alone = 9.0
        assert running.time() == pytest.approx(0.1)


def test_a_pipeline_of_sequences_runs_no_more_of_them_than_overlap() -> None:
    only, other = Fake(0.001), Fake(0.001)
    only.max_overlapping = 9
    for fake in (only, other):
        with deployed(fake, plans=[chain(0.001, 0.001)]) as running:
            for _ in range(3):
                assert running.time() == pytest.approx(0.001)
    assert only.counts == [1, 9] * 3
    assert max(other.counts) > 9


def test_replicas_run_at_the_same_time() -> None:
    begun, other, plans = threading.Event(), threading.Event(), [chain(0.1), chain(0.1)]
    with deployed(Fake(0.1, opens=begun, waits_for=other), Fake(0.1, opens=other, waits_for=begun), plans=plans) as running:
        assert running.time() == pytest.approx(0.05)


def test_one_request_in_all_is_timed_as_it_is() -> None:
    with deployed(Fake(0.7), plans=None) as running:
        assert running.time() == 0.7


@pytest.mark.parametrize("who", [0, 1])
def test_when_a_replica_fails_its_error_is_raised_and_the_others_end(who: int) -> None:
    fakes = [Fake(0.1), Fake(0.2)]
    fakes[who].error = ExecutionError("d1 is lost")
    if who == 0:
        fakes[1].waits_for = threading.Event()  # what only giving up ends
    with deployed(*fakes, plans=[chain(0.1), chain(0.1)]) as running:
        with pytest.raises(ExecutionError, match="d1 is lost"):
            running.time()
        assert bool(fakes[1].given_up) == (who == 0)
        fakes[who].error, fakes[1].waits_for = None, None
        assert running.time() == pytest.approx(1 / 15)


def test_what_was_opened_is_closed_if_another_cannot_be() -> None:
    first = Fake(0.1)

    def refuse() -> Any:
        raise ExecutionError("no room")

    with pytest.raises(ExecutionError, match="no room"):
        Deployed([lambda: cast("Any", first), refuse], [chain(0.1), chain(0.1)])
    assert first.closed == 1
