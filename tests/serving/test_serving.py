"""Requests as they come: each future has its own outcome, whatever fails, is cancelled, comes too late or is closed.

On every kind of lane; ``test_faults.py`` says what these are.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from placeit.core.errors import DeadlineError, ExecutionError, QueueFullError, UsageError
from placeit.runtime.feed import Feed
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.spans import Span
from placeit.serving import history
from placeit.serving.server import Answer, Server
from tests.beside import beside
from tests.runtime.test_faults import LANES, Bench, Strikes, bench, expected, inputs_of, models, strikes, workers  # noqa: F401 (fixtures)

pytestmark = pytest.mark.timeout(280, method="thread")

BAD = 1000  # an index that kernels refuse


def check(answer: Answer, index: int) -> None:
    (output,) = answer.result(60).values()
    np.testing.assert_allclose(output, expected(index), rtol=1e-5)
    assert answer.arrived <= answer.begun <= answer.ended


@pytest.fixture
def stuck() -> Iterator[Callable[[Bench], threading.Event]]:
    """Have the next segment on a device wait; gives what lets it go on, once it has begun."""
    with contextlib.ExitStack() as stack:

        def make(made: Bench) -> threading.Event:
            go_on = threading.Event()
            stack.callback(go_on.set)

            def hang() -> None:
                made.devices[0].trouble = int
                go_on.wait(60)

            made.devices[0].trouble = hang
            return go_on

        yield make


def in_flight(server: Server, made: Bench) -> Answer:
    """Submit a request, and wait until it is in flight."""
    answer = server.submit(inputs_of(made.model, 1))
    while not answer.running():
        time.sleep(0.001)
    return answer


class Twice:
    """A feed that is told twice of each request that has ended."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self.bell = feed, feed.bell

    def __getattr__(self, name: str) -> object:
        return getattr(self._feed, name)

    def ended(self, *told: Any) -> None:
        self._feed.ended(*told)
        self._feed.ended(*told)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("lanes", LANES)
def test_every_request_gets_its_own_outputs_or_its_own_error(
    bench: Callable[..., Bench], lanes: str, replicas: int  # noqa: F811
) -> None:  # fmt: skip
    """Those that fail take along none of those in flight beside them; nor do they when there are pauses."""
    made, choose = bench(lanes), random.Random(replicas)
    with Server([made.executor(in_flight=3) for _ in range(replicas)], queue=20) as server:
        indices = [BAD if choose.random() < 0.1 else choose.randrange(4) for _ in range(60)]
        answers = []
        for index in indices:
            answers.append(server.submit(inputs_of(made.model, index), timeout=60))
            if choose.random() < 0.1:
                time.sleep(0.005)
        for answer, index in zip(answers, indices, strict=True):
            if index == BAD:
                with pytest.raises(ExecutionError, match=r"segment that starts with '.*' failed on \S+: .*\w"):
                    answer.result(60)
            else:
                check(answer, index)
        assert set(server.busy) == set(made.runtime.cluster.names)
        assert server.repeated == 0


def test_a_second_answer_to_a_request_is_counted_and_changes_nothing_of_the_first(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    made = bench("native")
    executor = made.executor()
    monkeypatch.setattr(executor, "join", lambda *_: None)
    monkeypatch.setattr(executor, "serve", lambda feed: PlanExecutor.serve(executor, cast("Feed", Twice(feed))))
    with Server([executor]) as server:
        answer = server.submit(inputs_of(made.model, 1))
        check(answer, 1)
    assert server.repeated == 1
    check(answer, 1)


@pytest.mark.parametrize("lanes", LANES)
def test_others_use_the_devices_of_a_server_meanwhile(bench: Callable[..., Bench], lanes: str) -> None:  # noqa: F811
    made, over = bench(lanes), threading.Event()

    def load() -> int:
        count = 0
        while not over.is_set():
            server.submit(inputs_of(made.model, 1), timeout=60)
            count += 1
        return count

    with Server([made.executor(in_flight=3)]) as server, made.executor() as other, beside(load) as count:
        try:
            for _ in range(10):
                made.check(other, timeout=60)
        finally:
            over.set()
    assert isinstance(count[0], int)


def test_what_waits_can_be_cancelled_and_has_a_deadline(
    bench: Callable[..., Bench], stuck: Callable[[Bench], threading.Event]  # noqa: F811
) -> None:  # fmt: skip
    made = bench()
    go_on = stuck(made)
    with Server([made.executor()], queue=4) as server:
        first = in_flight(server, made)
        cancelled = server.submit(inputs_of(made.model, 2))
        late = server.submit(inputs_of(made.model, 2), start_within_s=0.01)
        patient = server.submit(inputs_of(made.model, 3), start_within_s=60)
        assert not first.cancel()
        assert cancelled.cancel()
        with pytest.raises(DeadlineError, match="before it could begin"):
            late.result(120)  # while nothing else happens
        go_on.set()
        check(first, 1)
        check(patient, 3)
        done, _ = concurrent.futures.wait([cancelled], timeout=120)
        assert done == {cancelled}
        with pytest.raises(UsageError, match="start_within_s"):
            server.submit(inputs_of(made.model, 1), start_within_s=0)
        with pytest.raises(UsageError, match="missing"):
            server.submit({})


def test_a_full_queue_holds_up_who_submits_or_says_so(
    bench: Callable[..., Bench], stuck: Callable[[Bench], threading.Event]  # noqa: F811
) -> None:  # fmt: skip
    made = bench()
    go_on = stuck(made)
    with Server([made.executor()], queue=2) as server:
        answers = [in_flight(server, made), *(server.submit(inputs_of(made.model, 1)) for _ in range(2))]
        with pytest.raises(QueueFullError, match="2 requests wait already"):
            server.submit(inputs_of(made.model, 1), wait=False)
        with pytest.raises(QueueFullError):
            server.submit(inputs_of(made.model, 1), timeout=0.01)
        with pytest.raises(DeadlineError, match="passed while the queue was full"):
            server.submit(inputs_of(made.model, 1), start_within_s=0.01, timeout=60)
        assert answers.pop().cancel()
        answers.append(server.submit(inputs_of(made.model, 1), wait=False))  # into the room of what was cancelled
        with beside(lambda: server.submit(inputs_of(made.model, 2))) as blocked:
            go_on.set()
        assert isinstance(blocked[0], Answer)
        check(blocked[0], 2)
        for answer in answers:
            check(answer, 1)


def test_a_callback_may_submit_but_neither_wait_nor_close(
    bench: Callable[..., Bench], stuck: Callable[[Bench], threading.Event]  # noqa: F811
) -> None:  # fmt: skip
    made, follow, errors = bench(), list[Answer](), list[Exception]()
    called = threading.Event()

    def submit() -> None:
        follow.append(server.submit(inputs_of(made.model, 2)))

    def go_on(_: object) -> None:
        finish = stuck(made)
        for ask in (submit, submit, submit, server.close):
            try:
                ask()
            except ExecutionError as error:
                errors.append(error)
        finish.set()
        called.set()

    with Server([made.executor()], queue=1) as server:
        first = server.submit(inputs_of(made.model, 1))
        first.add_done_callback(go_on)
        assert called.wait(60)
        check(first, 1)
        for answer in follow:
            check(answer, 2)
    assert {type(error) for error in errors} == {QueueFullError, ExecutionError}


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("lanes", LANES)
def test_closing_finishes_or_fails_every_future(bench: Callable[..., Bench], lanes: str, drain: bool) -> None:  # noqa: F811
    made, before = bench(lanes), workers()
    server = Server([made.executor(in_flight=2)])
    answers = [server.submit(inputs_of(made.model, 1)) for _ in range(30)]
    server.close(drain=drain)
    assert all(answer.done() for answer in answers)
    for answer in answers:
        if drain or answer.exception() is None:
            check(answer, 1)
        else:
            assert "closed" in str(answer.exception())
    with pytest.raises(ExecutionError, match="closed"):
        server.submit(inputs_of(made.model, 1))
    server.close()
    assert {thread.name for thread in workers() - before} <= {"placeit reports"}  # of the accelerator, which is open


def test_closing_waits_for_a_device_that_hangs_no_longer_than_it_was_told(
    bench: Callable[..., Bench], stuck: Callable[[Bench], threading.Event]  # noqa: F811
) -> None:  # fmt: skip
    made = bench()
    go_on = stuck(made)
    server = Server([made.executor()])
    answers = [in_flight(server, made), server.submit(inputs_of(made.model, 1))]
    server.close(timeout=0.1)
    for answer in answers:
        with pytest.raises(ExecutionError, match="had not ended in time"):
            answer.result(0)
    go_on.set()


@pytest.mark.parametrize("lanes", LANES)
def test_every_future_fails_with_the_reason_when_the_devices_are_closed(
    bench: Callable[..., Bench], lanes: str  # noqa: F811
) -> None:  # fmt: skip
    made = bench(lanes)
    with Server([made.executor(in_flight=2), made.executor()], queue=1000) as server:
        answers = [server.submit(inputs_of(made.model, 1)) for _ in range(500)]
        made.runtime.close()
        failed = [answer for answer in answers if answer.exception(60) is not None]
        for answer in failed:
            assert "closed, and nothing more can run there" in str(answer.exception())
        with pytest.raises(ExecutionError, match="closed, and nothing more can run there"):
            server.submit(inputs_of(made.model, 1)).result(60)


@pytest.mark.parametrize("lanes", ["native", "openvino", "ort", "torch"])
def test_every_future_fails_with_the_reason_when_one_of_several_devices_is_closed(
    bench: Callable[..., Bench], lanes: str  # noqa: F811
) -> None:  # fmt: skip
    made = bench(lanes)
    with Server([made.executor(in_flight=2)]) as server:
        made.runtime.devices[-1].close()
        with pytest.raises(ExecutionError, match="closed, and nothing more can run there"):
            server.submit(inputs_of(made.model, 1)).result(60)


def test_the_history_of_a_server_is_that_of_its_last_requests(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(history, "_KEPT", 10)
    made = bench()
    with Server([made.executor(in_flight=2)], queue=100) as server:
        for answer in [server.submit(inputs_of(made.model, 2)) for _ in range(30)]:
            check(answer, 2)
        spans = [span for span in server.history.trace() if isinstance(span, Span)]
    assert {span.request for span in spans} == set(range(21, 31))
    assert {span.track for span in spans} == set(server.busy)


@pytest.mark.parametrize("lanes", LANES)
def test_as_many_futures_end_as_requests_were_made_whatever_happens_when(
    bench: Callable[..., Bench], lanes: str  # noqa: F811
) -> None:  # fmt: skip
    """Several threads submit, cancel, give deadlines, make requests fail, and one closes in the middle of it."""
    for trial in range(4):
        made, before = bench(lanes), threading.active_count()
        server = Server([made.executor(in_flight=1 + trial % 3) for _ in range(1 + trial % 2)], queue=5)
        answers: list[tuple[Answer, int]] = []

        def submit(seed: int, server: Server = server, made: Bench = made, answers: list = answers) -> None:  # type: ignore[type-arg]
            choose = random.Random(seed)
            for _ in range(40):
                index = BAD if choose.random() < 0.1 else choose.randrange(4)
                deadline = choose.choice([None, None, 1e-3, 10])
                with contextlib.suppress(QueueFullError, DeadlineError):
                    answer = server.submit(inputs_of(made.model, index), start_within_s=deadline, timeout=0.05)
                    answers.append((answer, index))
                    if choose.random() < 0.2:
                        answer.cancel()

        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(beside(functools.partial(submit, 10 * trial + who))) for who in range(3)]
            if trial % 2:
                time.sleep(0.02 * trial)
                server.close(drain=trial > 2)
        server.close()
        for end in ends:
            assert end[0] is None or "closed" in str(end[0])
        for answer, index in answers:
            assert answer.done()
            if answer.cancelled():
                continue
            error = answer.exception()
            if error is None:
                check(answer, index)
            elif not isinstance(error, DeadlineError) and "closed" not in str(error):
                assert index == BAD, error
        made.runtime.close()
        assert threading.active_count() <= before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lanes", LANES)
def test_servers_survive_interrupts_at_random_moments(
    bench: Callable[..., Bench],  # noqa: F811
    strikes: Callable[[int], Strikes],  # noqa: F811
    lanes: str,
) -> None:
    """In the thread that submits, waits, cancels, and looks."""
    made, strike = bench(lanes), strikes(2)
    with Server([made.executor(in_flight=2)], queue=3) as server:
        answers: list[Answer] = []

        def use() -> None:
            with contextlib.suppress(DeadlineError, concurrent.futures.CancelledError):
                answers.append(server.submit(inputs_of(made.model, 1), start_within_s=strike.random.choice([None, 1e-3, 10])))
                if strike.random.random() < 0.2:
                    answers.pop(0).cancel()
                elif strike.random.random() < 0.5:
                    answers.pop(0).exception()

        for _ in range(40):
            strike.during(use, 0.004)
            check(server.submit(inputs_of(made.model, 2), timeout=60), 2)
        for answer in answers:
            with contextlib.suppress(DeadlineError):
                check(answer, 1)


@pytest.mark.parametrize("drain", [True, False])
def test_closing_goes_on_to_its_end_when_who_waits_is_interrupted(
    bench: Callable[..., Bench],  # noqa: F811
    strikes: Callable[[int], Strikes],  # noqa: F811
    drain: bool,
) -> None:
    made, strike = bench(), strikes(3)
    for _ in range(20):
        server = Server([made.executor(in_flight=2)], queue=20)
        answers = [server.submit(inputs_of(made.model, 1)) for _ in range(20)]
        strike.during(functools.partial(server.close, drain=drain), 0.004)
        strike.stop()
        server.close(drain=drain)
        assert all(answer.done() for answer in answers)
        with pytest.raises(ExecutionError, match="closed"):
            server.submit(inputs_of(made.model, 1))


def test_a_server_that_is_being_closed_ends_although_nobody_waits_for_it(
    bench: Callable[..., Bench], stuck: Callable[[Bench], threading.Event], strikes: Callable[[int], Strikes]  # noqa: F811
) -> None:  # fmt: skip
    made, strike = bench(), strikes(4)
    go_on = stuck(made)
    server = Server([made.executor()], queue=4)
    answers = [in_flight(server, made), server.submit(inputs_of(made.model, 2))]
    strike.during(server.close, 0.01)
    strike.stop()
    go_on.set()
    for answer, index in zip(answers, (1, 2), strict=True):
        check(answer, index)
    server.close()


def reshape(answer: Answer, inputs: dict[str, Any]) -> None:
    for value in inputs.values():
        value.shape = (2, 2)


MISUSES: dict[str, Callable[[Answer, dict[str, Any]], object]] = {
    "reshaping its arrays": reshape,
    "giving its future a result": lambda answer, _: answer.set_result({}),
    "giving its future an error": lambda answer, _: answer.set_exception(TimeoutError("I gave up")),
    "marking its future as running": lambda answer, _: answer.set_running_or_notify_cancel(),
    "cancelling its future and saying so": lambda answer, _: answer.cancel() and answer.set_running_or_notify_cancel(),
}


@pytest.mark.parametrize("misuse", MISUSES)
@pytest.mark.parametrize("lanes", ["native", "openvino", "fake"])
def test_who_misuses_a_request_harms_no_other_one(bench: Callable[..., Bench], lanes: str, misuse: str) -> None:  # noqa: F811
    made = bench(lanes)
    with Server([made.executor(in_flight=2)], queue=100) as server:
        for _ in range(3):
            before = [server.submit(inputs_of(made.model, 1)) for _ in range(5)]
            mine = inputs_of(made.model, 3)
            answer = server.submit(mine)
            with contextlib.suppress(concurrent.futures.InvalidStateError, RuntimeError):  # it has ended, or runs already
                MISUSES[misuse](answer, mine)
            after = [server.submit(inputs_of(made.model, 2)) for _ in range(5)]
            for index, answers in ((1, before), (2, after)):
                for other in answers:
                    check(other, index)
            with contextlib.suppress(ExecutionError, TimeoutError, concurrent.futures.CancelledError):
                answer.result(60)
            assert answer.done()


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, concurrent.futures.CancelledError])
def test_whatever_a_callback_raises_all_callbacks_are_called_and_the_server_goes_on(
    bench: Callable[..., Bench],  # noqa: F811
    stuck: Callable[[Bench], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    made, told = bench(), list[object]()
    go_on = stuck(made)

    def fail(_: object) -> None:
        raise kind("of a callback")

    class Full(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("no space left for a log")

    monkeypatch.setattr(logging.getLogger("placeit"), "handlers", [Full()])
    with Server([made.executor()]) as server:
        answers = [in_flight(server, made), *(server.submit(inputs_of(made.model, 1)) for _ in range(3))]
        for callback in (fail, told.append, fail, told.append):
            answers[1].add_done_callback(callback)
        go_on.set()
        for answer in answers:
            check(answer, 1)
        check(server.submit(inputs_of(made.model, 2)), 2)
    assert told == [answers[1]] * 2
