"""Rates of requests are compared with the plan, by times that the tests give."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.backends import load
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.serve import rates, repository
from placeit.serve.network import NetworkServer, Options
from placeit.serve.rates import RateWatch
from placeit.serve.repository import Repository
from placeit.serve.served_model import ServedModel
from placeit.serve.sources import Mover, Opened, Planned, Source
from placeit.session import Session
from placeit.workload.entries import Workload
from tests.serve.network_server import call
from tests.workload.nets import net, write_workload

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]


def on(model: Path, core: str, path: Path) -> Path:
    """Write the placement of a whole model on a core."""
    graph = load(model).graph
    nothing = np.zeros(len(graph), np.int32)
    Placement(graph.names, nothing + CORES.index(core), tuple(CORES), graph.hash, nothing).save(path)
    return path


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model on the first core that was placed for far more requests than come."""
    if len(CORES) < 2:
        pytest.skip("needs two CPU cores")
    monkeypatch.setattr(rates, "_MIN_S", 0.0)
    net(tmp_path, "one")
    on(tmp_path / "one" / "model.onnx", CORES[0], tmp_path / "one.json")
    return write_workload(tmp_path, "model: one/model.onnx, name: one, rate: 1000000, placement: one.json")


@contextlib.contextmanager
def served(plan: Path, **options: Any) -> Iterator[tuple[NetworkServer, Repository]]:
    with contextlib.ExitStack() as stack:

        def opener(source: Source, name: str, version: str) -> Opened:
            assert isinstance(source, Planned)
            session = stack.enter_context(Session(source.path, CORES, cache=None))
            server = session.serve(source.file)
            model = ServedModel(name, server, session.model.inputs, session.model.outputs, version)
            return Opened(model, server.close, Mover(session, server, source, None))

        made = Repository(opener, every_s=0.02, **options)
        made.open_plan(plan, lambda _: None)
        stack.callback(made.close)
        yield stack.enter_context(NetworkServer([], Options(port=0, grpc_port=None), made)), made


def test_rates_that_leave_a_plan_are_logged_with_the_command_to_run(plan: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "placeit"), served(plan, devices=["-d", ",".join(CORES)]) as (network, _):
        while not caplog.messages:
            time.sleep(0.01)
        page = call(network, "/metrics")[1]
    (message,) = caplog.messages
    assert message.startswith("Requests for 'one' arrive at 0.01 per second, and it was placed for 1e+06.")
    assert f"placeit optimize {plan} --start {plan} --predict -o {plan.with_suffix('.next.yaml')} --rate one=0.01" in message
    assert 'placeit_planned_rate{model="one",version="1"} 1e+06' in str(page)
    assert 'placeit_arrival_rate{model="one",version="1"} 0.01' in str(page)


def test_rates_are_followed_by_what_a_separate_process_finds(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Sequence[str]]()

    async def run(command: Sequence[str]) -> None:
        asked.append(command)
        output = Path(command[command.index("-o") + 1])
        placement = on(plan.parent / "one" / "model.onnx", CORES[1], output.with_name("other.json"))
        write_workload(output.parent, f"model: none.onnx, name: one, rate: 1, placement: {placement}").rename(output)

    monkeypatch.setattr(repository, "run", run)
    with served(plan, follow=True) as (network, made):
        (model,) = made.models
        while model.rates is None or model.rates.planned != 0.01:
            time.sleep(0.01)
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0.0] * 8}]}
        assert call(network, "/v2/models/one/infer", json.dumps(body))[0] == 200
        assert [one.devices for one in model.server.replacements] == [(CORES[1],)]
        assert not model.replaced
    assert len(asked) == 1
    assert Placement.load(plan.parent / "one.json").counts()[CORES[0]] == 0
    assert [entry.rate for entry in Workload.load(plan)] == [0.01]


def test_a_plan_that_cannot_be_found_leaves_all_as_it_is(
    plan: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = ["placeit", "optimize", str(plan), "--budget", "soon"]
    monkeypatch.setattr(repository, "replanning", lambda *_: wrong)
    with caplog.at_level(logging.WARNING, "placeit"), served(plan, follow=True) as (_, made):
        while len(caplog.messages) < 2:
            time.sleep(0.01)
        assert not made.models[0].server.replacements
    assert "stays as it is placed: " in caplog.messages[1]
    assert "'soon'" in caplog.messages[1]


def test_a_rate_that_leaves_the_plan_is_said_once_until_it_changes_again() -> None:
    watch, arrived, said = RateWatch(20.0, 7, now=1000.0), 7, []
    for minute, rate in enumerate((20, 29, 31, 33, 50, 20, 31, 12), 1):
        arrived += 60 * rate
        if watch.look(arrived, 1000.0 + 60.0 * minute):
            said.append(watch.rate)
        assert (watch.left is not None) == (rate > 30 or rate < 20 / 1.5)
    assert said == [31.0, 50.0, 31.0, 12.0]


def test_less_than_a_minute_or_a_hundred_requests_say_nothing() -> None:
    watch = RateWatch(1.0, 0, now=0.0)
    assert not watch.due(59.0)
    assert not watch.look(5000, 59.0)
    assert watch.due(61.0)
    assert not watch.look(99, 99.0)
    assert watch.rate is None
    assert not watch.look(99, 101.0)
    assert watch.look(99, 300.0)  # none, while 199 were expected
    assert watch.rate == 0.01
    rare = RateWatch(0.01, 0, now=0.0)
    assert rare.look(600, 60.0)
    assert rare.rate == 10.0
