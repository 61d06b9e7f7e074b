"""Executors that are lost: their requests run elsewhere, or fail with the reason."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

import pytest

from placeit.core.errors import ExecutionError, PlaceitError
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.server import Replacement, Server
from tests.runtime.test_faults import Bench, bench, inputs_of, models  # noqa: F401 (fixtures)
from tests.serving.test_serving import check

pytestmark = pytest.mark.timeout(280, method="thread")


def test_another_replica_takes_over_what_one_had_whose_thread_has_died(bench: Callable[..., Bench]) -> None:  # noqa: F811
    dying, other = bench(), bench()

    def die() -> None:
        dying.devices[0].worker.submit(functools.partial(exec, "raise SystemExit"))

    with Server([dying.executor(in_flight=2), other.executor(in_flight=2)], queue=100) as server:
        dying.devices[0].trouble = die
        for answer in [server.submit(inputs_of(other.model, 2)) for _ in range(50)]:
            check(answer, 2)


def test_an_executor_is_made_in_place_of_a_lost_one_and_takes_over_what_that_had(bench: Callable[..., Bench]) -> None:  # noqa: F811
    dying, other = bench(), bench()

    def die() -> None:
        dying.devices[0].worker.submit(functools.partial(exec, "raise SystemExit"))

    def replace(lost: PlanExecutor, left: Sequence[PlanExecutor], why: PlaceitError) -> tuple[PlanExecutor, Replacement]:
        assert not left
        return other.executor(in_flight=2), Replacement(str(why), ("other",), 0.0, 0.0, 0.0)

    with Server([dying.executor(in_flight=2)], queue=100, replace=replace) as server:
        dying.devices[0].trouble = die
        for answer in [server.submit(inputs_of(other.model, 2)) for _ in range(50)]:
            check(answer, 2)
    (replacement,) = server.replacements
    assert replacement.answered_s > 0


def test_an_executor_that_cannot_be_replaced_fails_every_future_with_the_reason(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made = bench()

    def die() -> None:
        made.devices[0].worker.submit(functools.partial(exec, "raise SystemExit"))

    def replace(lost: PlanExecutor, left: Sequence[PlanExecutor], why: PlaceitError) -> tuple[PlanExecutor, Replacement]:
        raise ExecutionError("nothing is left")

    with Server([made.executor(in_flight=2)], queue=100, replace=replace) as server:
        made.devices[0].trouble = die
        failed = []
        for _ in range(50):
            try:
                answer = server.submit(inputs_of(made.model, 2))
            except ExecutionError as error:
                failed.append(error)
            else:
                failed.append(answer.exception(60))
    assert any("nothing is left" in str(error) for error in failed)


def test_an_executor_that_is_lost_and_cannot_be_closed_leaves_no_future_without_an_outcome(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture  # noqa: F811
) -> None:  # fmt: skip
    made = bench()
    executor = made.executor(in_flight=2)
    close, failures = executor.close, [OSError("put in")]

    def failing() -> None:
        close()
        if failures:
            raise failures.pop()

    monkeypatch.setattr(executor, "close", failing)
    with Server([executor], queue=100) as server:
        made.devices[0].trouble = lambda: made.devices[0].worker.submit(functools.partial(exec, "raise SystemExit"))
        answers = [server.submit(inputs_of(made.model, 2))]
        with contextlib.suppress(ExecutionError):  # once nothing can run any more
            answers.extend(server.submit(inputs_of(made.model, 2)) for _ in range(50))
        for answer in answers:
            assert "put in" not in str(answer.exception(60))
        with pytest.raises(ExecutionError, match="Nothing can run on this server any more"):
            server.submit(inputs_of(made.model, 2))
    assert "A lost executor could not be closed: OSError: put in" in caplog.text
