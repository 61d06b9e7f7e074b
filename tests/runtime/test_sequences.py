"""Sequences of requests: each goes on from the state that the one before has left, whatever else runs on the same devices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from stateful_models import SIZE, Caches, Totals, caches, totals
from test_faults import CORES, Troubled

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ExecutionError, SequenceError, StateMemoryError, UsageError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.runtime.serving import Server
from placeit.session import Session
from placeit.workbench.options import Inputs

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


class Steps:
    """Counts the runs of segments on Python lanes, and has one of them do something of its own."""

    def __init__(self, made: Bench, trouble: Callable[[], object], *, at: int) -> None:
        self.runs, self._at, self._trouble = 0, at, trouble
        for device in made.devices:
            device.trouble = self._count

    def _count(self) -> None:
        self.runs += 1
        if self.runs == self._at:
            self._trouble()


def fail() -> None:
    raise RuntimeError("put in")


@pytest.mark.parametrize("at", [1, 5, 11])
def test_a_request_that_fails_takes_its_own_sequence_along_and_nothing_else(bench: Callable[[str], Bench], at: int) -> None:
    """What runs beside it neither fails nor runs twice, which states would show."""
    made, models = bench("python"), [Totals(LAYERS) for _ in range(3)]
    segments = len(made.plan.programs)
    with Server([made.executor()], queue=100) as server:
        sequences = [server.sequence() for _ in models]
        steps = Steps(made, fail, at=at)
        answers = [[sequence.submit(inputs(step)) for step in range(8)] for sequence in sequences]
        hit = [k for k, of_sequence in enumerate(answers) if any(answer.exception(60) for answer in of_sequence)]
        assert len(hit) == 1
        for k, of_sequence in enumerate(answers):
            well = [answer for answer in of_sequence if answer.exception() is None]
            for step, answer in enumerate(well):
                close_to(answer.result(), models[k].run(inputs(step)["x"]))
            assert len(well) == 8 or k in hit
        errors = [error for answer in answers[hit[0]] if (error := answer.exception()) is not None]
        assert "put in" in str(errors[0])
        assert all(isinstance(error, SequenceError) and "not known any more" in str(error) for error in errors[1:])
        ended = sum(answer.exception() is None for of_sequence in answers for answer in of_sequence)
        assert ended * segments < steps.runs <= (ended + 1) * segments
        broken = sequences[hit[0]]
        for ask in (lambda: broken.run(inputs(1)), broken.fork):
            with pytest.raises(SequenceError, match=r"is not known any more: .*put in.* Call reset\(\)"):
                ask()
        broken.reset()
        close_to(broken.run(inputs(4)), Totals(LAYERS).run(inputs(4)["x"]))
        assert server.repeated == 0


def test_a_sequence_that_keeps_its_inputs_computes_a_lost_state_anew(bench: Callable[[str], Bench]) -> None:
    made, model = bench("python"), Totals(LAYERS)
    with Server([made.executor()]) as server, server.sequence(recompute=True) as sequence:
        for step in range(5):
            close_to(sequence.run(inputs(step)), model.run(inputs(step)["x"]))
        Steps(made, fail, at=3)
        with pytest.raises(ExecutionError, match="put in"):
            sequence.run(inputs(5))
        succeeded = server.stats().outcomes["succeeded"]
        close_to(sequence.run(inputs(6)), model.run(inputs(6)["x"]))  # as if that one had not been asked for
        assert server.stats().outcomes["succeeded"] == succeeded + 1
        Steps(made, fail, at=2)
        with pytest.raises(ExecutionError, match="put in"):
            sequence.run(inputs(7))
        close_to(sequence.fork().run(inputs(8)), model.fork().run(inputs(8)["x"]))
        Steps(made, fail, at=2)
        with pytest.raises(SequenceError, match="not known any more"):  # as computing it anew fails
            sequence.run(inputs(9))
        sequence.reset()
        model.reset()
        close_to(sequence.run(inputs(9)), model.run(inputs(9)["x"]))


def test_inputs_that_do_not_fit_fail_their_request_and_change_no_state(bench: Callable[[str], Bench]) -> None:
    made, model, gate = bench("python"), Totals(LAYERS), threading.Event()
    with Server([made.executor()]) as server, server.sequence() as sequence:
        Steps(made, lambda: gate.wait(60), at=1)
        first, changed = sequence.submit(inputs(0)), inputs(1)
        second, third = sequence.submit(changed), sequence.submit(inputs(2))
        changed["x"].shape = (SIZE, 1)  # while it waits
        gate.set()
        close_to(first.result(60), model.run(inputs(0)["x"]))
        with pytest.raises(ExecutionError, match=r"could not be served: .* float32 \[8, 1\]"):
            second.result(60)
        close_to(third.result(60), model.run(inputs(2)["x"]))


def rows(count: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng([count, seed]).standard_normal((1, count, SIZE)).astype(np.float32)}


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Session]:
    """A session of a model whose state grows with each request, with a placement on two devices."""
    if len(CORES) < 2:
        pytest.skip("needs two CPU cores")
    path = caches(tmp_path / "caches.xml", LAYERS)
    sizes = Inputs(shapes={"x": (1, "1..64@4", SIZE)})
    with Session(path, [f"CPU@{core}" for core in CORES[:2]], inputs=sizes, cache=None) as session:
        session.profile()
        yield session


def split(session: Session) -> Placement:
    groups = len(session.grouping.groups)
    return session.placement(np.arange(groups) * 2 // groups)


def test_a_state_grows_with_its_sequence_and_is_measured(growing: Session) -> None:
    placement = split(growing)
    assert len({segment.device for segment in growing.plan_of(placement).programs}) == 2
    with growing.serve(placement) as server:
        model, other = Caches(LAYERS), Caches(LAYERS)
        sequence = server.sequence()
        close_to(sequence.run(rows(30)), model.run(rows(30)["x"]))
        assert sequence.state_bytes == model.state_bytes
        for step in range(20):
            close_to(sequence.run(rows(1, step)), model.run(rows(1, step)["x"]))
            close_to(server.submit(rows(3)).result(60), Caches(LAYERS).run(rows(3)["x"]))
        assert sequence.state_bytes == model.state_bytes  # though it is not measured after each
        with server.sequence() as second:
            close_to(second.run(rows(5)), other.run(rows(5)["x"]))
            stats = server.stats()
            assert stats.sequences == 2
            assert stats.state_bytes == sequence.state_bytes + other.state_bytes
        fork = sequence.fork()
        assert fork.state_bytes == sequence.state_bytes
        close_to(fork.run(rows(2)), model.run(rows(2)["x"]))
        sequence.reset()
        assert sequence.state_bytes == 0
        fork.close()
        assert (server.stats().sequences, server.stats().state_bytes) == (1, 0)


def test_a_state_that_has_no_room_is_refused_before_it_grows_and_the_others_go_on(growing: Session) -> None:
    model, other = Caches(LAYERS), Caches(LAYERS)
    step = LAYERS * SIZE * 4 * 10  # bytes of ten rows
    with growing.serve(split(growing), state_memory=7.5 * step) as server:
        first, second = server.sequence(), server.sequence()
        close_to(second.run(rows(10)), other.run(rows(10)["x"]))
        for number in range(6):
            close_to(first.run(rows(10, number)), model.run(rows(10, number)["x"]))
        for ask in (lambda: first.run(rows(10)), first.fork):
            with pytest.raises(StateMemoryError, match=r"sequence \d has no room: .*may take 9\.6 kB there.*state_memory="):
                ask()
        close_to(server.submit(rows(3)).result(60), Caches(LAYERS).run(rows(3)["x"]))
        second.close()
        close_to(first.run(rows(10, 9)), model.run(rows(10, 9)["x"]))  # as it was
        first.reset()
        close_to(first.run(rows(10)), Caches(LAYERS).run(rows(10)["x"]))
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="state_memory"):
            growing.serve(split(growing), state_memory=wrong)
    with pytest.raises(UsageError, match="lots"):
        growing.sequence(split(growing), state_memory="lots")
