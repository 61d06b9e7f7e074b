"""The numbers of a server: each request counts once, before its future shows what became of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from placeit.backends import load
from placeit.core.errors import DeadlineError, ExecutionError, QueueFullError, UsageError
from placeit.core.views import Closable
from placeit.runtime.device_stats import DeviceStats
from placeit.serving.load_run import offer
from placeit.serving.server import Answer, Server
from tests.runtime.test_faults import Bench, bench, inputs_of, models, save_mixing  # noqa: F401 (fixtures)
from tests.serving.test_adapting import Bench as LosableBench
from tests.serving.test_serving import BAD, check, in_flight, stuck  # noqa: F401 (fixtures)

pytestmark = pytest.mark.timeout(280, method="thread")

Stuck = Callable[[Bench], threading.Event]


def outcomes(server: Server) -> dict[str, int]:
    """Those that there were."""
    return {what: count for what, count in server.stats().outcomes.items() if count}


def test_numbers_are_those_of_the_futures_and_of_what_ran(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made = bench("native")
    with Server([made.executor(in_flight=2), made.executor(in_flight=2)], queue=40) as server:
        before = server.stats()
        answers = [server.submit(inputs_of(made.model, BAD if index % 5 == 4 else 1)) for index in range(20)]
        seen = Counter("failed" if answer.exception(60) else "succeeded" for answer in answers)
        stats = server.stats()
    assert (before.arrived, before.latency_s, len(before.latencies)) == (0, 0.0, 0)
    assert {what: count for what, count in stats.outcomes.items() if count} == seen == {"succeeded": 16, "failed": 4}
    assert (stats.arrived, stats.waiting, stats.in_flight, stats.queue) == (20, 0, 0, 40)
    times = [answer.ended - answer.arrived for answer in answers if answer.exception() is None]
    assert sorted(stats.latencies.tolist()) == sorted(times)
    assert stats.latency_s == pytest.approx(sum(times))
    assert stats.percentiles(0.0, 0.5, 1.0) == pytest.approx([min(times), np.median(times), max(times)])
    assert [(one.name, one.node, one.up, one.losses) for one in stats.devices] == [("a", "", True, 0), ("b", "", True, 0)]
    ran = [span for span in server.history.trace() if span.kind == "compute"]
    for device in stats.devices:
        spent = sum(span.seconds for span in ran if span.where == (device.name,))
        assert device.busy_s == server.busy[device.name] == pytest.approx(spent)


def test_what_waits_is_given_up_too_late_or_refused_counts_as_that(bench: Callable[..., Bench], stuck: Stuck) -> None:  # noqa: F811
    made = bench("openvino")
    with Server([made.executor()], queue=3) as server:
        go_on = stuck(made)
        first = in_flight(server, made)
        late = server.submit(inputs_of(made.model, 1), start_within_s=1e-9)
        given_up, *others = (server.submit(inputs_of(made.model, 1)) for _ in range(3))
        stats = server.stats()
        assert (stats.in_flight, stats.waiting, stats.outcomes["expired"], stats.arrived) == (1, 3, 1, 5)
        for options, error in (({"wait": False}, QueueFullError), ({"start_within_s": 1e-9}, DeadlineError)):
            with pytest.raises(error):
                server.submit(inputs_of(made.model, 1), **options)  # type: ignore[arg-type]
        with pytest.raises(QueueFullError):
            server.submit(inputs_of(made.model, 1), timeout=1e-9)
        server.turn_away()
        assert isinstance(late.exception(60), DeadlineError)
        assert given_up.cancel()
        assert outcomes(server) == {"expired": 2, "cancelled": 1, "refused": 3}
        go_on.set()
        for answer in (first, *others):
            check(answer, 1)
    assert outcomes(server) == {"succeeded": 3, "expired": 2, "cancelled": 1, "refused": 3}
    with pytest.raises(ExecutionError, match="closed"):
        server.submit(inputs_of(made.model, 1))
    assert server.stats().arrived == 10


@pytest.mark.parametrize("late", [False, True], ids=["what waits", "what is in flight, too"])
def test_what_a_server_drops_when_it_is_closed_has_failed(
    bench: Callable[..., Bench], stuck: Stuck, late: bool  # noqa: F811
) -> None:  # fmt: skip
    made = bench("openvino")
    server = Server([made.executor()])
    go_on = stuck(made)
    first = in_flight(server, made)
    waiting, given_up = (server.submit(inputs_of(made.model, 1)) for _ in range(2))
    given_up.cancel()
    if late:
        server.close(drain=False, timeout=1e-3)
        go_on.set()
    else:
        waiting.add_done_callback(lambda _: go_on.set())
        server.close(drain=False)
    assert isinstance(waiting.exception(60), ExecutionError)
    assert (first.exception(60) is None) == (not late)
    server.close()
    assert outcomes(server) == ({"failed": 2, "cancelled": 1} if late else {"succeeded": 1, "failed": 1, "cancelled": 1})
    assert (server.stats().waiting, server.stats().in_flight) == (0, 0)


def test_where_nothing_is_left_that_could_run_requests_have_failed_and_later_ones_are_refused(
    bench: Callable[..., Bench], stuck: Stuck, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    made = bench("openvino")
    with Server([made.executor()]) as server:
        go_on, device = stuck(made), made.devices[0]
        answers = [in_flight(server, made), *(server.submit(inputs_of(made.model, 1)) for _ in range(3))]
        close = device.close

        def close_device() -> None:  # after the runtime has given up its requests
            go_on.set()
            close()

        monkeypatch.setattr(device, "close", close_device)
        made.runtime.close()
        assert all(isinstance(answer.exception(60), ExecutionError) for answer in answers)
        with pytest.raises(ExecutionError, match="Nothing can run"):
            server.submit(inputs_of(made.model, 1))
        assert outcomes(server) == {"failed": 4, "refused": 1}


def test_under_load_latencies_count_from_when_requests_were_to_arrive(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made = bench("native")
    with Server([made.executor()], queue=1) as server:
        served = offer(server, inputs_of(made.model, 1), np.zeros(50))
        stats = server.stats()
    assert served.load is not None
    assert (served.arrived, stats.arrived, served.failed) == (50, 50, 0)
    assert stats.outcomes["refused"] == served.dropped > 0
    assert stats.outcomes["succeeded"] == served.load.requests
    assert stats.percentiles(0.5, 0.95, 0.99) == pytest.approx([served.load.p50, served.load.p95, served.load.p99])
    assert served.busy == {one.name: pytest.approx(one.busy_s / served.seconds) for one in stats.devices}
    assert len({one.arrived for one in server.history.requests()}) == 1  # all were due at once


def test_a_device_that_is_lost_and_comes_back_is_known_as_that(tmp_path: Path) -> None:
    made = LosableBench(load(save_mixing(tmp_path / "mixing.onnx")))
    with made.runtime, Server([made.runtime.executor(made.plan(1))]) as server:
        assert server.submit(inputs_of(made.model, 1)).exception(60) is None
        lost = made.device(0)
        lost.lose()
        for _ in range(2):
            a, b = server.stats().devices
            assert (a, a.losses) == (DeviceStats("a", up=False), 1)
        lost.there = True
        made.runtime.pool.reopen()
        a, b = server.stats().devices
        assert (a, a.losses) == (DeviceStats("a", returns=1), 1)
        assert (b.name, b.up, b.losses, b.busy_s > 0) == ("b", True, 0, True)


def test_watchers_are_closed_with_their_server_and_none_begins_afterwards(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made, ended = bench("native"), []

    class Watcher(ExitStack):
        def close(self) -> None:
            ended.append(self)

    with Server([made.executor()]) as server:
        watchers: list[Closable] = [Watcher(), Watcher()]  # type: ignore[list-item]
        for watcher in watchers:
            server.watch(watcher)
        assert ended == []
    assert ended == watchers
    for begin in (server.live, server.metrics, lambda: server.watch(watchers[0])):
        with pytest.raises(ExecutionError, match="closed"):
            begin()


def test_a_request_counts_from_when_it_was_to_arrive(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made = bench("native")
    with Server([made.executor()]) as server:
        due = perf_counter() - 10
        answer: Answer = server.submit(inputs_of(made.model, 1), arrived=due)
        check(answer, 1)
        for wrong in (perf_counter() + 1e3, float("nan")):
            with pytest.raises(UsageError, match="at most the current time"):
                server.submit(inputs_of(made.model, 1), arrived=wrong)
    assert answer.arrived == due
    assert server.stats().latency_s == answer.ended - due
