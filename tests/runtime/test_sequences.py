"""Sequences of requests: each goes on from the state that the one before has left, whatever else runs on the same devices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from stateful_models import SIZE, Totals, totals
from test_faults import CORES, Troubled

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ExecutionError, SequenceError
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.runtime.serving import Server
from placeit.session import Session

LAYERS = 4


class Bench:
    """A model of stateful layers on two devices, one after the other in turns.

    Args:
        lanes: ``native`` for devices as they are; ``python`` for devices whose segments Python starts; ``emulated`` for links
            and a device that are slowed down.
    """

    def __init__(self, lanes: str) -> None:
        self.model = totals(LAYERS)
        slow = 1.5 if lanes == "emulated" else 1.0
        devices = tuple(
            Device(name, "openvino", Address("CPU", CORES[k : k + 1]), slowdown=slow if k else 1.0, all_cores=allowed_cores())
            for k, name in enumerate("ab")
        )
        links = {pair: Link(1e9, 1e-5, "emulated") for pair in (("a", "b"), ("b", "a"))} if lanes == "emulated" else {}
        cluster = Cluster(devices, links)
        self.devices = [Troubled(device_kind(device).open(device, "f32")) for device in devices]
        grouping = coarsen(self.model.graph, keep_together=self.model.together, co_locate=False)
        options = {"devices": self.devices} if lanes == "python" else {}
        self.runtime = Runtime(self.model, grouping, cluster, **options)  # type: ignore[arg-type]
        where = np.zeros(len(grouping.groups), np.int32)
        for name, group in zip(self.model.graph.names, grouping.group_of, strict=True):
            if name[-1].isdigit() and not name.startswith("Assign"):
                where[group] = int(name[-1]) % 2
        self.plan = Segmenter(grouping, Costs.zero(len(where), cluster)).plan(where)

    def executor(self, in_flight: int = 1) -> PlanExecutor:
        return self.runtime.executor(self.plan, in_flight=in_flight)


LANES = ("native", "python", "emulated")


@pytest.fixture
def bench() -> Iterator[Callable[[str], Bench]]:
    with contextlib.ExitStack() as stack:

        def make(lanes: str = "python") -> Bench:
            made = Bench(lanes)
            stack.callback(made.runtime.close)
            return made

        yield make


def inputs(number: int) -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng(number).standard_normal((1, SIZE)).astype(np.float32)}


def close_to(outputs: dict[str, NDArray[Any]], expected: NDArray[Any]) -> None:
    (output,) = outputs.values()
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lanes", LANES)
def test_a_sequence_computes_what_the_uncut_model_does_step_by_step(bench: Callable[[str], Bench], lanes: str) -> None:
    made = bench(lanes)
    assert len({segment.device for segment in made.plan.segments}) == 2
    uncut = ov.Core().compile_model(made.model.ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    with Server([made.executor()]) as server, server.sequence() as sequence:
        for step in range(40):
            expected = uncut.infer(inputs(step))[0]
            close_to(sequence.run(inputs(step), timeout=60), expected)
            if step % 10 == 0:  # one of no sequence starts from the initial state
                close_to(server.submit(inputs(step)).result(60), Totals(LAYERS).run(inputs(step)["x"]))


@pytest.mark.parametrize("lanes", LANES)
def test_sequences_side_by_side_have_states_of_their_own(bench: Callable[[str], Bench], lanes: str) -> None:
    made, models = bench(lanes), [Totals(LAYERS) for _ in range(5)]
    with Server([made.executor(2)], queue=200) as server:
        sequences = [server.sequence() for _ in models]
        answers = []
        for step in range(10):
            for k, sequence in enumerate(sequences):
                answers.append((sequence.submit(inputs(10 * k + step)), models[k].run(inputs(10 * k + step)["x"])))
            answers.append((server.submit(inputs(step)), Totals(LAYERS).run(inputs(step)["x"])))
        for answer, expected in answers:
            close_to(answer.result(60), expected)
        sequences[0].close()
        close_to(sequences[1].run(inputs(0)), models[1].run(inputs(0)["x"]))


@pytest.mark.parametrize("lanes", LANES)
def test_a_fork_goes_on_from_the_state_of_its_origin_and_a_reset_from_the_initial_one(
    bench: Callable[[str], Bench], lanes: str
) -> None:
    made, model = bench(lanes), Totals(LAYERS)
    with Server([made.executor()]) as server, server.sequence() as sequence:
        before = [sequence.submit(inputs(step)) for step in range(5)]
        fork = sequence.fork()
        for step, answer in enumerate(before):
            close_to(answer.result(0), model.run(inputs(step)["x"]))
        forked = model.fork()
        for step in range(5, 8):
            close_to(fork.run(inputs(step)), forked.run(inputs(step)["x"]))
            close_to(sequence.run(inputs(-step % 100)), model.run(inputs(-step % 100)["x"]))
        late = sequence.submit(inputs(1))
        sequence.reset()
        after = sequence.submit(inputs(1))
        close_to(late.result(60), model.run(inputs(1)["x"]))
        model.reset()
        close_to(after.result(60), model.run(inputs(1)["x"]))
        sequence.reset()
        other = sequence.fork()
        close_to(other.run(inputs(2)), Totals(LAYERS).run(inputs(2)["x"]))
        close_to(fork.run(inputs(3)), forked.run(inputs(3)["x"]))


def test_a_closed_sequence_ends_what_it_was_asked_for_and_says_that_it_is_closed(bench: Callable[[str], Bench]) -> None:
    made, model = bench("native"), Totals(LAYERS)
    with Server([made.executor()]) as server:
        sequence = server.sequence()
        answers = [sequence.submit(inputs(step)) for step in range(5)]
        sequence.close()
        sequence.close()
        for step, answer in enumerate(answers):
            close_to(answer.result(60), model.run(inputs(step)["x"]))
        for ask in (lambda: sequence.run(inputs(1)), sequence.reset, sequence.fork):
            with pytest.raises(SequenceError, match=r"Sequence 1 is closed: make a new one\."):
                ask()
        assert len(server.sequences) == 0


def test_a_session_has_sequences_on_a_server_of_their_own(cache: Cache) -> None:
    if len(CORES) < 2:
        pytest.skip("needs two CPU cores")
    with Session(totals(LAYERS), [f"CPU@{core}" for core in CORES[:2]], cache=cache) as session:
        session.profile()
        groups = len(session.grouping.groups)
        placement = session.placement(np.arange(groups) * 2 // groups)
        model, names = Totals(LAYERS), {thread.name for thread in threading.enumerate()}
        with session.sequence(placement) as sequence:
            close_to(sequence.run(inputs(1)), model.run(inputs(1)["x"]))
            fork = sequence.fork()
        close_to(fork.run(inputs(2)), model.run(inputs(2)["x"]))
        fork.close()
        with pytest.raises(ExecutionError, match="closed"):
            fork.run(inputs(3))
        assert {thread.name for thread in threading.enumerate()} == names
