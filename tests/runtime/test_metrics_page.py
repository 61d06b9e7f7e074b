"""The page of metrics of a server: its numbers in OpenMetrics and Prometheus' format, on this machine only."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from placeit.backends import load
from placeit.core.errors import UsageError
from placeit.core.views import MetricsPage
from placeit.report.metrics import Metrics
from placeit.serving.server import Server
from placeit.serving.stats import OUTCOMES
from tests.runtime.test_faults import Bench, bench, inputs_of, models, save_mixing  # noqa: F401 (fixtures)
from tests.serving.test_adapting import Bench as LosableBench
from tests.serving.test_serving import BAD

pytestmark = pytest.mark.timeout(280, method="thread")

Numbers = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(page: MetricsPage | Metrics, accept: str = "application/openmetrics-text; version=1.0.0") -> Numbers:
    """All samples, by name and labels."""
    with urlopen(Request(page.url, headers={"Accept": accept}), timeout=60) as answer:
        text, kind = answer.read().decode(), answer.headers["Content-Type"]
    assert kind.startswith(accept.partition(";")[0])
    parse = openmetrics if "openmetrics" in accept else plain_text
    families = list(parse(text))
    assert all(family.documentation for family in families)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def of(numbers: Numbers, name: str, **labels: str) -> float:
    return numbers[f"placeit_{name}", frozenset(labels.items())]


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "text/plain"])
def test_the_page_has_the_numbers_of_the_server(bench: Callable[..., Bench], accept: str) -> None:  # noqa: F811
    made = bench("native")
    before = {family.name for family in REGISTRY.collect()}
    with Server([made.executor(in_flight=2)], queue=20) as server, server.metrics() as page:
        assert math.isnan(of(scraped(page, accept), "request_latency_seconds", quantile="0.99"))
        answers = [server.submit(inputs_of(made.model, BAD if index % 5 == 4 else 1)) for index in range(20)]
        for answer in answers:
            answer.exception(60)
        numbers, stats = scraped(page, accept), server.stats()
    counts = {what: of(numbers, "requests_total", outcome=what) for what in OUTCOMES}
    assert counts == stats.outcomes == {"succeeded": 16, "failed": 4, "expired": 0, "cancelled": 0, "refused": 0}
    assert of(numbers, "request_latency_seconds_count") == 16
    assert of(numbers, "request_latency_seconds_sum") == pytest.approx(stats.latency_s)
    for share in (0.5, 0.95, 0.99):
        assert of(numbers, "request_latency_seconds", quantile=str(share)) == pytest.approx(stats.percentiles(share)[0])
    assert (of(numbers, "queue_requests"), of(numbers, "queue_limit_requests")) == (0, 20)
    assert of(numbers, "in_flight_requests") == of(numbers, "replacements_total") == 0
    for device in stats.devices:
        where = {"device": device.name, "node": ""}
        assert of(numbers, "device_busy_seconds_total", **where) == pytest.approx(device.busy_s)
        assert of(numbers, "device_up", **where) == 1
    assert before == {family.name for family in REGISTRY.collect()}  # which other parts of a program may use


def test_the_page_says_which_devices_were_lost_and_came_back(tmp_path: Path) -> None:
    made = LosableBench(load(save_mixing(tmp_path / "mixing.onnx")))

    def of_first(page: MetricsPage) -> list[float]:
        numbers = scraped(page)
        return [of(numbers, f"device_{what}", device="a", node="") for what in ("up", "losses_total", "returns_total")]

    with made.runtime, Server([made.runtime.executor(made.plan(1))]) as server:
        page = server.metrics()
        assert of_first(page) == [1, 0, 0]
        made.device(0).lose()
        assert of_first(page) == [0, 1, 0]
        made.device(0).there = True
        made.runtime.pool.reopen()
        assert of_first(page) == [1, 1, 1]


def test_it_ends_with_the_server_whatever_clients_do_and_its_port_is_free_again(
    bench: Callable[..., Bench],  # noqa: F811
) -> None:
    with socket.socket() as silent:
        with Server([bench("native").executor()]) as server:
            page = server.metrics()
            silent.connect(("127.0.0.1", page.port))  # and it never says anything
            assert scraped(page)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", page.port)):
            pass
    with Metrics(page.port) as again:
        assert again.port == page.port
        assert scraped(again) == {}  # there is no server yet
    page.close()


def test_nobody_else_than_this_machine_can_reach_it() -> None:
    with Metrics() as page:
        assert page.url == f"http://127.0.0.1:{page.port}/metrics"
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", page.port)):
            pass  # where it would be as well if it were everywhere


def test_a_port_that_is_taken_or_does_not_exist_is_a_usage_error(bench: Callable[..., Bench]) -> None:  # noqa: F811
    with Server([bench("native").executor()]) as server, server.metrics() as page:
        with pytest.raises(UsageError, match=f"port {page.port}: Address already in use.* or 0"):
            server.metrics(page.port)
        for port in (-1, 65536):
            with pytest.raises(UsageError, match=f"no port {port}"):
                server.metrics(port=port)


def test_without_the_extra_it_says_how_to_install_it(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with Server([bench("native").executor()]) as server, pytest.raises(UsageError, match=r"pip install 'placeit\[metrics\]'"):
        server.metrics()


def test_names_of_devices_are_labels_whatever_is_in_them(bench: Callable[..., Bench]) -> None:  # noqa: F811
    with Server([bench("native").executor()]) as server:
        stats, name = server.stats(), 'a "b" \\ c\n[d]'
        (first, *_) = stats.devices
    with Metrics() as page:
        page.read = lambda: replace(stats, devices=(replace(first, name=name),))
        assert of(scraped(page), "device_up", device=name, node="") == 1
