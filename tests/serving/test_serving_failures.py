"""A failure at any call of what serves, one at a time: one request fails at most, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from placeit.core.errors import DeadlineError, ExecutionError
from placeit.runtime import executor, feed, plan_executor, run_ends, serving_loop
from placeit.runtime.accelerators import executor as stream_executor
from placeit.serving import admitting, answering, answers, history, queueing, replacing, replica, replica_thread, turns, waiting
from placeit.serving import server as serving
from placeit.serving.server import Answer, Server
from tests.injected import Failures
from tests.runtime.test_faults import Bench, bench, expected, inputs_of, models  # noqa: F401 (fixtures)

# hundreds of failures, and hundreds of requests after each: minutes on a busy machine
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900, method="thread")]

LOOP: tuple[ModuleType, ...] = (
    serving, replacing, admitting, queueing, answering, turns, replica_thread, replica, waiting, answers, feed, history,
    plan_executor, run_ends, serving_loop, executor, stream_executor,
)  # fmt: skip
SERVING = ("placeit serving",)  # names of threads
BAD = 1000  # an index that kernels refuse
TIMEOUT_S = 240.0
FOLLOWED = 8  # callbacks that the server calls while a failure is armed
AFTER = 100  # requests that have to be right after each failure


def is_right(answer: Answer, index: int) -> bool:
    """Whether an answer is right; False if it is the failure that was put in. Anything else fails the test."""
    error = answer.exception(TIMEOUT_S)
    if error is not None:
        assert "put in" in str(error), error
        return False
    (output,) = answer.result().values()
    np.testing.assert_allclose(output, expected(index), rtol=1e-5)
    return True


def watch(failures: Failures, server: Server, made: Bench) -> None:
    """Have threads be watched again that were hit."""
    watched: list[bool] = []
    while not any(watched):
        server.submit(inputs_of(made.model, 0)).add_done_callback(lambda _: watched.append(failures.watch()))
        assert is_right(server.submit(inputs_of(made.model, 0)), 0)


def trouble(server: Server, made: Bench) -> int:
    """Have requests end in all ways at once, and return how many failed that should not have."""
    good = [(server.submit(inputs_of(made.model, index % 4)), index % 4) for index in range(3)]
    bad = server.submit(inputs_of(made.model, BAD))
    late = server.submit(inputs_of(made.model, 1), start_within_s=1e-9)
    cancelled = server.submit(inputs_of(made.model, 1))
    told: list[object] = []
    good[0][0].add_done_callback(told.append)
    if not cancelled.cancel():
        good.append((cancelled, 1))
    good += [(server.submit(inputs_of(made.model, index % 4)), index % 4) for index in range(3)]
    assert isinstance(bad.exception(TIMEOUT_S), ExecutionError)
    assert isinstance(late.exception(TIMEOUT_S), DeadlineError | ExecutionError)
    return sum(not is_right(answer, index) for answer, index in good)


def followed(server: Server, made: Bench) -> int:
    """Have requests follow each other until the server has called the callbacks of some; return how many failed.

    The thread that waits for a future of the compiled queue ends it, so the server may be behind: it calls callbacks itself.
    One that was to be called when the failure was put in is lost.
    """
    failed, told = 0, list[object]()
    while len(told) < FOLLOWED:
        answer = server.submit(inputs_of(made.model, 1))
        answer.add_done_callback(told.append)
        failed += not is_right(answer, 1)
    return failed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that was hit
@pytest.mark.parametrize("occurrence", [1, 3])
@pytest.mark.parametrize("lanes", ["native", "openvino"])
def test_a_failure_at_any_call_of_the_loop_fails_one_request_at_most_and_the_next_ones_are_right(
    bench: Callable[..., Bench], lanes: str, occurrence: int  # noqa: F811
) -> None:  # fmt: skip
    failures = Failures(LOOP, SERVING, lambda where: MemoryError(f"put in: {where}"), occurrence)
    with failures.watched():
        made = bench(lanes)
        server = Server([made.executor(in_flight=3)], queue=2 * AFTER)
    with server:
        spared = 0
        while spared < 3:
            before = len(failures.hit)
            with failures.armed():
                failed = trouble(server, made) + followed(server, made)
            answers = [server.submit(inputs_of(made.model, index % 4)) for index in range(AFTER)]
            assert all(is_right(answer, index % 4) for index, answer in enumerate(answers))
            assert failed <= len(failures.hit) - before
            spared = 0 if len(failures.hit) > before else spared + 1
            watch(failures, server, made)
        assert server.repeated == 0
        with made.executor() as other:  # lanes are free for others
            made.check(other, timeout=TIMEOUT_S)
    assert len(failures.hit) > 60
