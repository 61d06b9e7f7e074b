"""Items through several models: as many come out as go in, each once and in order, whatever fails."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from test_faults import Bench, bench, expected, inputs_of, models, workers  # noqa: F401 (fixtures)

from placeit.core.errors import ExecutionError, QueueFullError, UsageError
from placeit.runtime.pipeline import Pipeline, Stage
from placeit.runtime.serving import Server

pytestmark = pytest.mark.timeout(120, method="thread")

BAD = 1000


@pytest.fixture
def made(bench: Callable[..., Bench]) -> Bench:  # noqa: F811
    return bench("native")


@pytest.fixture
def server(made: Bench) -> Iterator[Server]:
    with Server([made.executor(requests=3), made.executor(requests=2)], queue=3) as served:
        yield served


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


def test_pipelines_that_make_no_sense_are_refused(made: Bench, server: Server) -> None:
    one, _ = stages(made, server)
    for wrong in ([], [one, one]):
        with pytest.raises(UsageError):
            Pipeline(wrong)
    with pytest.raises(UsageError):
        Pipeline([one], window=0)
