"""Items through several models: as many come out as go in, each once and in order, whatever fails."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from typing import Any

import pytest

from placeit.core.errors import DeadlineError, ExecutionError, QueueFullError, UsageError
from placeit.serving.pipeline import Pipeline, Stage
from placeit.serving.server import Answer, Server
from tests.runtime.test_faults import Bench, bench, expected, inputs_of, models, workers  # noqa: F401 (fixtures)

pytestmark = pytest.mark.timeout(120, method="thread")

BAD = 1000


@pytest.fixture
def made(bench: Callable[..., Bench]) -> Bench:  # noqa: F811
    return bench("native")


@pytest.fixture
def server(made: Bench) -> Iterator[Server]:
    with Server([made.executor(in_flight=3), made.executor(in_flight=2)], queue=3) as served:
        yield served


class Held:
    """A server that answers when a test says so, and takes no request that is negative."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._held = True

    def submit(self, inputs: Any) -> Answer:
        if inputs < 0:
            raise UsageError("a negative request")
        answer = Answer()
        answer.set_running_or_notify_cancel()
        self.answers.append(answer)
        if not self._held:
            self.let_go()
        return answer

    def let_go(self) -> None:
        """Answer all from now on."""
        self._held = False
        for answer in self.answers:
            with contextlib.suppress(InvalidStateError):
                answer.set_result({})

    def stage(self, name: str) -> Stage:
        """Which asks for a request for each number of an item."""
        return Stage(name, self, lambda item: item, lambda item, _: item)  # type: ignore[arg-type]


def stages(made: Bench, server: Server, count: int = 2) -> list[Stage]:
    """Each asks for a request for each index of an item, and adds the first of the outputs to what the item has."""

    def split(item: Any) -> list[Any]:
        return [inputs_of(made.model, index) for index in item[0]]

    def join(item: Any, outputs: Any) -> Any:
        return item[0], [*item[1], *(float(next(iter(values.values()))[0]) for values in outputs)]

    return [Stage(f"stage {number}", server, split, join) for number in range(count)]


def result_of(indices: list[int], count: int = 2) -> list[float]:
    return [float(expected(index)[0]) for index in indices] * count


def test_every_item_comes_out_once_and_in_order_with_any_number_of_requests(made: Bench, server: Server) -> None:
    choose = random.Random(0)
    items = [[choose.randrange(4) for _ in range(choose.choice([0, 1, 2, 7]))] for _ in range(60)]
    with Pipeline(stages(made, server), window=5) as pipeline:
        results = list(pipeline.map([(item, []) for item in items], timeout=60))
        assert [indices for indices, _ in results] == items
        for indices, values in results:
            assert values == pytest.approx(result_of(indices), rel=1e-5)
        assert pipeline.entered == pipeline.left == len(items)
        assert pipeline.requests == dict.fromkeys(("stage 0", "stage 1"), sum(map(len, items)))


def test_an_item_that_fails_goes_no_further_and_the_others_go_on(made: Bench, server: Server) -> None:
    items = [[BAD, 1] if number % 5 == 3 else [number % 4] for number in range(40)]
    ended: list[int] = []
    with Pipeline(stages(made, server)) as pipeline:
        futures: list[Future[Any]] = []
        for number, item in enumerate(items):
            futures.append(pipeline.submit((item, []), timeout=60))
            futures[-1].add_done_callback(lambda _, number=number: ended.append(number))  # type: ignore[misc]
        for item, future in zip(items, futures, strict=True):
            if BAD in item:
                with pytest.raises(ExecutionError, match="failed on"):
                    future.result(60)
            else:
                assert future.result(60)[1] == pytest.approx(result_of(item), rel=1e-5)
    assert ended == list(range(40))
    assert pipeline.requests == {"stage 0": 48, "stage 1": 32}


def test_a_slow_stage_holds_up_who_submits_and_says_so(made: Bench, server: Server) -> None:
    go_on = threading.Event()

    def join(item: Any, outputs: Any) -> Any:
        go_on.wait(60)
        return item

    first, _ = stages(made, server)
    with Pipeline([first, Stage("slow", server, lambda _: [], join)], window=3) as pipeline:
        futures = [pipeline.submit(([1], [])) for _ in range(3)]
        with pytest.raises(QueueFullError, match="3 items are under way"):
            pipeline.submit(([1], []), timeout=0.05)
        go_on.set()
        futures.append(pipeline.submit(([1], []), timeout=60))
        assert all(future.result(60) for future in futures)
    assert pipeline.entered == pipeline.left == 4


@pytest.mark.parametrize("drain", [True, False])
def test_closing_finishes_or_fails_every_item_and_ends_the_threads(made: Bench, server: Server, drain: bool) -> None:
    before = workers()
    pipeline = Pipeline(stages(made, server, 3), window=30)
    futures = [pipeline.submit(([1, 2], [])) for _ in range(30)]
    assert not futures[-1].cancelled()
    pipeline.close(drain=drain)
    for future in futures:
        assert future.done()
        assert (future.exception() is None) or (not drain and "closed" in str(future.exception()))
    with pytest.raises(ExecutionError, match="closed"):
        pipeline.submit(([1], []))
    pipeline.close()
    assert workers() == before


def test_items_fail_with_the_reason_when_a_server_is_closed(made: Bench) -> None:
    server = Server([made.executor()])
    with Pipeline(stages(made, server)) as pipeline:
        server.close()
        with pytest.raises(ExecutionError, match="server is closed"):
            pipeline.submit(([1], [])).result(60)


def test_an_item_ends_when_all_that_it_has_asked_for_has_ended_and_every_request_counts() -> None:
    held = Held()
    with Pipeline([held.stage("only")]) as pipeline:
        for item, accepted in (([1, 2, -1], 2), ([1, 2], 2)):  # one is refused; and the first one fails
            future = pipeline.submit(item)
            while len(held.answers) < accepted:
                time.sleep(0.001)
            first, second = held.answers
            first.set_exception(ExecutionError("it failed"))
            with pytest.raises(TimeoutError):
                future.exception(0.1)
            second.set_result({})
            assert re.search("a negative request|it failed", str(future.exception(60)))
            held.answers.clear()
    assert pipeline.requests == {"only": 4}


def test_a_callback_may_submit_but_neither_wait_nor_close(made: Bench, server: Server) -> None:
    follow, errors, called = list[Future[Any]](), list[Exception](), threading.Event()

    def go_on(_: object) -> None:
        follow.append(pipeline.submit(([2], [])))
        for ask in (lambda: pipeline.submit(([2], [])), lambda: pipeline.submit(([2], []), timeout=60), pipeline.close):
            try:
                ask()
            except ExecutionError as error:
                errors.append(error)
        called.set()

    with Pipeline(stages(made, server), window=1) as pipeline:
        pipeline.submit(([1], [])).add_done_callback(go_on)
        assert called.wait(60)
        assert follow[0].result(60)[1] == pytest.approx(result_of([2]), rel=1e-5)
    assert [type(error) for error in errors] == [QueueFullError, QueueFullError, ExecutionError]


def test_closing_with_a_time_out_fails_what_a_stage_holds_up() -> None:
    held, before = Held(), workers()
    pipeline = Pipeline([held.stage("first"), held.stage("hung")])
    futures = [pipeline.submit([1]), pipeline.submit([2])]
    while len(held.answers) < 2:
        time.sleep(0.001)
    held.answers[0].set_result({})
    while pipeline.requests["hung"] < 1:
        time.sleep(0.001)
    pipeline.close(timeout=0.1)
    for future, stage in zip(futures, ("hung", "first"), strict=True):
        assert f"closed before this item had gone through the stage '{stage}'" in str(future.exception(0))
    assert pipeline.entered == pipeline.left == 2
    pipeline.close()  # which has nothing to wait for
    held.let_go()
    while workers() != before:
        time.sleep(0.001)
    assert pipeline.left == 2


def test_a_result_that_is_late_says_which_stage_holds_it_up() -> None:
    held = Held()
    with Pipeline([held.stage("first"), held.stage("slow")], window=2) as pipeline:
        results = pipeline.map([[], [1], [2]], timeout=0.1)
        assert next(results) == []
        with pytest.raises(DeadlineError, match=r"No result for 0.1 s: 2 items are under way, .* stage 'first'"):
            next(results)
        with pytest.raises(QueueFullError, match=r"has left the pipeline for 0.1 s: 2 items .* stage 'first'"):
            pipeline.submit([3], timeout=0.1)
        held.let_go()


def test_pipelines_that_make_no_sense_are_refused(made: Bench, server: Server) -> None:
    one, _ = stages(made, server)
    for wrong in ([], [one, one]):
        with pytest.raises(UsageError):
            Pipeline(wrong)
    with pytest.raises(UsageError):
        Pipeline([one], window=0)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_whatever_a_callback_raises_the_other_items_go_on(made: Bench, server: Server, kind: type[BaseException]) -> None:
    def fail(_: object) -> None:
        raise kind("of a callback")

    with Pipeline(stages(made, server), window=2) as pipeline:
        pipeline.submit(([1], [])).add_done_callback(fail)
        assert all(pipeline.map([([1], [])] * 5, timeout=60))


def test_an_item_whose_owner_sets_its_future_harms_no_other_one(made: Bench, server: Server) -> None:
    with Pipeline(stages(made, server), window=2) as pipeline:
        for set_it in (
            lambda future: future.set_result(None),
            lambda future: future.set_exception(TimeoutError("I gave up")),
            lambda future: future.set_running_or_notify_cancel(),
            lambda future: future.cancel() and future.set_running_or_notify_cancel(),
        ):
            future = pipeline.submit(([1, 2, 3], []))
            with contextlib.suppress(InvalidStateError, RuntimeError):
                set_it(future)
            assert all(pipeline.map([([1], [])] * 3, timeout=60))
    assert pipeline.entered == pipeline.left
