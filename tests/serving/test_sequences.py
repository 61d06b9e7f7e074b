"""Sequences of requests: each goes on from the state that the one before has left, whatever else runs on the same devices."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis.strategies import booleans, integers
from numpy.typing import NDArray

from benchmarks._timed import TimedDevice
from placeit.backends.torch.model import load as load_torch
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ExecutionError, PlaceitError, SequenceError, StateMemoryError, UsageError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime import executor, plan_executor, run_ends, serving_loop, slots
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.drivers import drive
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.runtime.spans import Span
from placeit.serving import (
    admitting,
    answering,
    answers,
    line,
    queueing,
    replacing,
    replica,
    replica_thread,
    sequences,
    turns,
    waiting,
)
from placeit.serving import server as serving
from placeit.serving.sequence import Sequence
from placeit.serving.server import Answer, Replacement, Server
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.injected import Failures
from tests.runtime.test_faults import CORES, Troubled
from tests.stateful_models import SIZE, Caches, Totals, caches, totals

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
        opened = devices if lanes == "python" else ()
        self.devices = [Troubled(device_kind(device).open(device, "f32")) for device in opened]
        grouping = coarsen(self.model.graph, keep_together=self.model.together, co_locate=False)
        options = {"devices": self.devices} if opened else {}
        self.runtime = Runtime(self.model, grouping, cluster, **options)  # type: ignore[arg-type]
        self.grouping, where = grouping, np.zeros(len(grouping.groups), np.int32)
        for name, group in zip(self.model.graph.names, grouping.group_of, strict=True):
            if name[-1].isdigit() and not name.startswith("Assign"):
                where[group] = int(name[-1]) % 2
        self.plan = self.plan_of(where)

    def plan_of(self, where: NDArray[np.int32]) -> Plan:
        return Segmenter(self.grouping, Costs.zero(len(where), self.runtime.cluster)).plan(where)

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
    uncut = (
        openvino_core().compile_model(made.model.ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    )
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
    """Counts the runs of segments on Python lanes, and calls a given function in one of them."""

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
        assert ended * segments < steps.runs <= (ended + 2) * segments  # the next one has begun already
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
        begun, changed = [sequence.submit(inputs(step)) for step in range(2)], inputs(2)
        third, fourth = sequence.submit(changed), sequence.submit(inputs(3))
        changed["x"].shape = (SIZE, 1)  # while it waits
        gate.set()
        for step, answer in enumerate(begun):
            close_to(answer.result(60), model.run(inputs(step)["x"]))
        with pytest.raises(ExecutionError, match=r"could not be served: .* float32 \[8, 1\]"):
            third.result(60)
        close_to(fourth.result(60), model.run(inputs(3)["x"]))


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
            with server.metrics() as page, urlopen(page.url, timeout=60) as answer:
                text = answer.read().decode()
            assert "placeit_sequences 2.0" in text
            assert f"placeit_state_bytes {stats.state_bytes:.1f}" in text
        assert {span.sequence for span in server.history.trace() if isinstance(span, Span)} == {0, 1, 2}
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


def die(made: Bench) -> None:
    """Have the thread of a device end."""
    made.devices[0].worker.submit(functools.partial(exec, "raise SystemExit"))


@pytest.mark.parametrize("replaced", [False, True], ids=["another replica", "a new executor"])
def test_a_lost_device_is_told_to_its_sequences_and_those_that_keep_their_inputs_go_on_elsewhere(
    bench: Callable[[str], Bench], replaced: bool
) -> None:
    dying, other = bench("python"), bench("python")

    def replace(lost: PlanExecutor, left: Any, why: PlaceitError) -> tuple[PlanExecutor, Replacement]:
        return other.executor(), Replacement(str(why), ("other",), 0.0, 0.0, 0.0)

    executors = [dying.executor()] if replaced else [dying.executor(), other.executor()]
    with Server(executors, queue=100, replace=replace if replaced else None) as server:
        plain, keeping, idle, fresh = server.sequence(), server.sequence(recompute=True), server.sequence(), server.sequence()
        sequences, models = [plain, keeping, idle], [Totals(LAYERS) for _ in range(3)]
        on_dying = [
            sequence.line.replica is not None and sequence.line.replica.executor is executors[0] for sequence in sequences
        ]
        for step in range(3):
            for sequence, model in zip(sequences, models, strict=True):
                close_to(sequence.run(inputs(step)), model.run(inputs(step)["x"]))
        Steps(dying, lambda: die(dying), at=1)
        lost = [answer for answer in [server.submit(inputs(1)) for _ in range(3)] if answer.exception(60) is not None]
        assert not lost  # whatever has no state begins again elsewhere
        for _ in range(200):  # until it is noticed
            if server.vacant or server.replacements:
                break
            server.submit(inputs(1)).result(60)
        for sequence, model, hit in zip(sequences, models, on_dying, strict=True):
            if hit and sequence is not keeping:
                for ask in (lambda sequence=sequence: sequence.run(inputs(7)), sequence.fork):
                    with pytest.raises(SequenceError, match=r"state of sequence \d is not known any more: .*Call reset\(\)"):
                        ask()
                sequence.reset()
                model.reset()
            close_to(sequence.run(inputs(7)), model.run(inputs(7)["x"]))
        close_to(fresh.run(inputs(1)), Totals(LAYERS).run(inputs(1)["x"]))
        assert any(on_dying)


def test_a_request_that_is_in_flight_when_its_device_dies_fails_or_is_computed_anew(bench: Callable[[str], Bench]) -> None:
    dying, other = bench("python"), bench("python")
    with Server([dying.executor(), other.executor()], queue=100) as server:
        plain, elsewhere, keeping = server.sequence(), server.sequence(), server.sequence(recompute=True)
        assert plain.line.replica is keeping.line.replica is not elsewhere.line.replica
        models = [Totals(LAYERS) for _ in range(3)]
        Steps(dying, lambda: die(dying), at=9)
        answers = [[sequence.submit(inputs(step)) for step in range(6)] for sequence in (plain, elsewhere, keeping)]
        for of_sequence, model in zip(answers, models, strict=True):
            for step, answer in enumerate(of_sequence):
                if answer.exception(60) is None:
                    close_to(answer.result(), model.run(inputs(step)["x"]))
        failed = [sum(answer.exception() is not None for answer in of_sequence) for of_sequence in answers]
        assert failed[1] == 0
        assert failed[2] <= 1  # the request that the thread died of, if it is of this sequence
        assert failed[0] + failed[2] > 0


def test_a_server_that_leaves_a_placement_moves_the_states_to_the_next_one(bench: Callable[[str], Bench]) -> None:
    made, models = bench("python"), [Totals(LAYERS) for _ in range(3)]
    first, whole = made.executor(), made.plan_of(np.zeros(len(made.grouping.groups), np.int32))
    with Server([first], queue=100) as server:
        sequences = [server.sequence(recompute=k == 2) for k in range(3)]
        for step in range(3):
            for sequence, model in zip(sequences[:2], models, strict=False):
                close_to(sequence.run(inputs(step)), model.run(inputs(step)["x"]))
        waiting = [sequence.submit(inputs(3)) for sequence in sequences]
        assert server.exchange([first], [made.runtime.executor(whole)], Replacement("better", ("a",), 0.0, 0.0, 0.0))
        for sequence, model, answer in zip(sequences, models, waiting, strict=True):
            close_to(answer.result(60), model.run(inputs(3)["x"]))
            close_to(sequence.run(inputs(4)), model.run(inputs(4)["x"]))
        assert server.stats().replacements == 1


def test_a_server_that_is_closed_ends_what_its_sequences_were_asked_for(bench: Callable[[str], Bench]) -> None:
    for drain in (True, False):
        made, model = bench("native"), Totals(LAYERS)
        server = Server([made.executor()], queue=100)
        sequence = server.sequence()
        answers = [sequence.submit(inputs(step)) for step in range(20)]
        server.close(drain=drain)
        well = [answer.exception(0) is None for answer in answers]
        assert well == sorted(well, reverse=True)
        assert all(well) or not drain
        for step, answer in enumerate(answers[: sum(well)]):
            close_to(answer.result(), model.run(inputs(step)["x"]))
        for ask in (functools.partial(sequence.run, inputs(1)), sequence.fork, server.sequence):
            with pytest.raises(ExecutionError, match="closed"):
                ask()
        sequence.close()


def test_what_waits_for_a_sequence_can_be_cancelled_refused_or_timed_out(bench: Callable[[str], Bench]) -> None:
    made, model, gate = bench("python"), Totals(LAYERS), threading.Event()
    with Server([made.executor()], queue=100) as server, server.sequence() as sequence:
        Steps(made, lambda: gate.wait(60), at=1)
        first = sequence.submit(inputs(0), behind=False)
        with pytest.raises(SequenceError, match="has not ended, and this one may not wait"):
            sequence.submit(inputs(1), behind=False)
        second, third = sequence.submit(inputs(1)), sequence.submit(inputs(2))
        assert third.cancel()
        with pytest.raises(ExecutionError, match="the request has not ended: it has not begun, and will not"):
            sequence.run(inputs(1), timeout=0.01)
        with pytest.raises(ExecutionError, match="time-out is over, and requests of sequence 1 have not ended"):
            sequence.fork(timeout=0.01)
        called: list[PlaceitError | None] = []
        first.add_done_callback(lambda _: called.append(raised(lambda: sequence.run(inputs(1)))))
        first.add_done_callback(lambda _: called.append(raised(sequence.fork)))
        first.add_done_callback(lambda _: answers.append(sequence.submit(inputs(2))))
        answers: list[Answer] = []
        gate.set()
        close_to(first.result(60), model.run(inputs(0)["x"]))
        close_to(second.result(60), model.run(inputs(1)["x"]))
        server.submit(inputs(0)).result(60)
        close_to(answers[0].result(60), model.run(inputs(2)["x"]))
        assert [type(error) for error in called] == [ExecutionError, ExecutionError]
        outcomes = server.stats().outcomes
        assert (outcomes["cancelled"], outcomes["refused"]) == (2, 1)


def raised(ask: Callable[[], object]) -> PlaceitError | None:
    try:
        ask()
    except PlaceitError as error:
        return error
    return None


def test_a_sequence_that_nobody_refers_to_is_closed(bench: Callable[[str], Bench]) -> None:
    made = bench("native")
    with Server([made.executor()]) as server:
        sequence = server.sequence()
        answer = sequence.submit(inputs(1))
        del sequence
        gc.collect()
        close_to(answer.result(60), Totals(LAYERS).run(inputs(1)["x"]))
        server.submit(inputs(1)).result(60)
        assert server.stats().sequences == 0


def test_devices_that_keep_no_state_say_so() -> None:
    model = load_torch(Counting(), (torch.zeros(4),))
    device = Device("a", "openvino", Address("CPU", CORES[:1]), all_cores=allowed_cores())
    cluster, grouping = drive(Cluster((device,), {}), model), coarsen(model.graph, keep_together=model.together)
    groups = len(grouping.groups)
    with Runtime(model, grouping, cluster, devices=[TimedDevice("a", lambda _: 0.0)]) as runtime:
        plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.zeros(groups, np.int32))
        with Server([runtime.executor(plan)]) as server:
            with pytest.raises(UsageError, match=r"a does not keep the state of op '.*' from one request to the next"):
                server.sequence()
            assert server.stats().sequences == 0
            assert server.submit({"x": np.ones(4, np.float32)}).result(60).keys() == {spec.name for spec in model.outputs}


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Random(RuleBasedStateMachine):
    """Any operations on several sequences, against as many models that NumPy computes."""

    def __init__(self) -> None:
        super().__init__()
        self.made = Bench("native")
        self.server = Server([self.made.executor()], queue=1000)
        self.known: list[tuple[Sequence, Totals]] = []
        self.answers: list[tuple[Answer, Any]] = []

    def pick(self, which: int) -> tuple[Sequence, Totals] | None:
        return self.known[which % len(self.known)] if self.known else None

    @rule(recompute=booleans())
    def make(self, recompute: bool) -> None:
        self.known.append((self.server.sequence(recompute=recompute), Totals(LAYERS)))

    @rule(which=integers(0, 9), number=integers(0, 99))
    def submit(self, which: int, number: int) -> None:
        if (found := self.pick(which)) is not None:
            self.answers.append((found[0].submit(inputs(number)), found[1].run(inputs(number)["x"])))

    @rule(number=integers(0, 99))
    def submit_alone(self, number: int) -> None:
        self.answers.append((self.server.submit(inputs(number)), Totals(LAYERS).run(inputs(number)["x"])))

    @rule(which=integers(0, 9))
    def reset(self, which: int) -> None:
        if (found := self.pick(which)) is not None:
            found[0].reset()
            found[1].reset()

    @rule(which=integers(0, 9))
    def fork(self, which: int) -> None:
        if (found := self.pick(which)) is not None:
            self.known.append((found[0].fork(), found[1].fork()))

    @rule(which=integers(0, 9))
    def close(self, which: int) -> None:
        if (found := self.pick(which)) is not None:
            self.known.remove(found)
            found[0].close()

    def teardown(self) -> None:
        with contextlib.closing(self.made.runtime), self.server:
            for answer, expected in self.answers:
                close_to(answer.result(60), expected)
            self.server.submit(inputs(0)).result(60)
            assert self.server.stats().sequences == len(self.known)
            assert self.server.repeated == 0


Random.TestCase.settings = settings(max_examples=10, stateful_step_count=40, deadline=None)
TestRandom = Random.TestCase


SERVER = serving, replacing, admitting, queueing, answering, turns, replica_thread
ALL = sequences, line, *SERVER, replica, waiting, answers, plan_executor, run_ends, serving_loop, executor, slots


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", [(sequences, line, replica, replica_thread), ALL], ids=["some", "all"])
def test_a_failure_at_any_call_of_the_server_leaves_states_that_are_right_or_said_to_be_lost(
    bench: Callable[[str], Bench], loop: tuple[ModuleType, ...]
) -> None:
    made = bench("native")
    failures = Failures(loop, ("placeit serving",), lambda where: MemoryError(f"put in: {where}"))
    with failures.watched():
        server = Server([made.executor(2)], queue=100)
    with server:
        known = [(server.sequence(recompute=k == 2), Totals(LAYERS)) for k in range(3)]
        spared = 0
        while spared < 2:
            before = len(failures.hit)
            with failures.armed():
                asked = [(*one, step, one[0].submit(inputs(step))) for step in range(3) for one in known]
                server.submit(inputs(1)).exception(240)
                for _, model, step, answer in asked:
                    if (error := answer.exception(240)) is None:
                        close_to(answer.result(), model.run(inputs(step)["x"]))
                    else:
                        assert "put in" in str(error) or "not known any more" in str(error)
            for sequence, model in known:
                if raised(functools.partial(sequence.fork, timeout=240)) is None or sequence.line.lost is None:
                    close_to(sequence.run(inputs(5)), model.run(inputs(5)["x"]))
                sequence.reset()
                model.reset()
            gc.collect()
            spared = 0 if len(failures.hit) > before else spared + 1
            server.submit(inputs(0)).add_done_callback(lambda _: failures.watch())
            server.submit(inputs(0)).result(240)
        assert server.repeated == 0
    assert len(failures.hit) > 30
