"""What the runtime keeps compiled, and what it lets go of."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from torch import nn

from placeit.backends.base import Model
from placeit.backends.onnx.joined import relu_chain
from placeit.backends.openvino.model import describe
from placeit.backends.torch.model import load as load_torch
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.memory import Use
from placeit.core.threads import Worker
from placeit.devices import parse_device
from placeit.devices.host import allowed_cores
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime import segment_compiler
from placeit.runtime.executor import Executor
from placeit.runtime.programs import Programs, searching
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.small_models import convolution, inception_like, ops


class Program:
    """Takes memory and threads of a process that is not there."""

    taken = Use(0.0, 0.0)

    def __init__(self, key: str) -> None:
        self.key = key
        self.change(+1)

    def __del__(self) -> None:
        self.change(-1)

    def change(self, sign: int) -> None:
        Program.taken = Use(Program.taken.bytes + sign * 10, Program.taken.threads + sign * 2)


@pytest.fixture(autouse=True)
def _nothing_taken() -> None:
    Program.taken = Use(0.0, 0.0)


def kept(
    *,
    memory: float = 1e9,
    threads: float = 1e9,
    count: int = 1000,
    weights: float = 1e9,
    others: Callable[[], float] = lambda: 0.0,
) -> Programs[str, Program]:
    return Programs(
        Use(memory, threads),
        max_programs=count,
        max_weights=weights,
        weights=lambda key: float(len(key)),
        used=lambda: Use(Program.taken.bytes + others(), Program.taken.threads),
    )


def get(programs: Programs[str, Program], *keys: str) -> tuple[list[Program], list[str]]:
    """Return programs, and the keys of those that were made for it."""
    made: list[str] = []

    def make(places: Sequence[int]) -> list[Program]:
        made.extend(keys[place] for place in places)
        return [Program(keys[place]) for place in places]

    found = programs.get(keys, make)
    assert [program.key for program in found] == list(keys)
    return found, made


def names(count: int) -> list[str]:
    return [f"{number:03}" for number in range(count)]


def test_a_program_is_made_once_and_equal_keys_share_it() -> None:
    programs = kept()
    (a, b, again), made = get(programs, "a", "b", "a")
    assert made == ["a", "b"]
    assert a is again
    assert get(programs, "b", "c")[1] == ["c"]
    assert programs.get([], lambda _: []) == []
    assert b.key == "b"


@pytest.mark.parametrize("bound", [{"memory": 200}, {"threads": 40}, {"count": 20}, {"weights": 60}])
def test_whatever_is_bounded_stays_within_it_and_what_was_used_last_is_there(bound: dict[str, float]) -> None:
    programs = kept(**bound)
    for key in names(60):
        get(programs, key)
        assert Program.taken.bytes <= 200
    assert 10 <= len(programs) <= 20
    assert get(programs, "059", "055")[1] == []
    assert get(programs, "003")[1] == ["003"]


def test_there_is_room_for_what_is_made_before_it_is_made() -> None:
    programs = kept(memory=200)
    for key in names(15):
        get(programs, key)
    taken: list[float] = []

    def make(places: Sequence[int]) -> list[Program]:
        taken.append(Program.taken.bytes)
        return [Program("large") for _ in places]

    programs.get(["x" * 150], make)
    assert taken == [pytest.approx(0, abs=50)]


def test_what_is_used_again_stays() -> None:
    programs = kept(count=20)
    for key in names(60):
        get(programs, "often", key)
    assert get(programs, "often")[1] == []


def test_what_somebody_uses_is_kept_whatever_it_takes() -> None:
    programs = kept(memory=200)
    used, _ = get(programs, *names(50))
    assert len(programs) == 50
    for key in ("a", "b", "c"):
        get(programs, key)
    assert get(programs, *names(50))[0] == used
    del used
    for number in range(100):
        get(programs, f"later {number}")
    assert Program.taken.bytes <= 700, "what was used when the bound was passed counts as somebody else's"


def test_memory_of_others_costs_nothing_but_one_clearing() -> None:
    others = [0.0]
    programs = kept(memory=200, others=lambda: others[0])
    get(programs, *names(10))
    others[0] = 1e6
    get(programs, "a")
    made = [key for _ in range(3) for key in get(programs, *names(10))[1]]
    assert made == names(10)
    others[0] = 0.0
    for key in names(60):
        get(programs, key)
    assert Program.taken.bytes <= 400, "what there was when others took least may count as theirs"


def test_large_programs_go_with_their_last_user_unless_a_search_is_under_way() -> None:
    programs = Programs[str, Program](
        Use(1e9, 1e9), max_programs=1000, max_weights=1e12, weights=lambda _: 40e6, used=lambda: Program.taken
    )
    used, _ = get(programs, "a", "b", "c")
    assert get(programs, "c", "a", "b")[1] == [], "what is used is found, whether it is kept or not"
    del used
    assert len(programs) == 1, "one of 40 MB may stay, and two may not"
    with searching():
        get(programs, "a", "b", "c")
        with searching():
            assert get(programs, "a", "b", "c")[1] == []
        assert get(programs, "d", "a", "b", "c")[1] == ["d"]
    assert len(programs) == 1
    assert get(programs, "d")[1] == []


@pytest.mark.slow
def test_several_threads_can_ask_at_once() -> None:
    programs, wrong = kept(count=8), []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            keys = [f"{k}" for k in rng.integers(0, 30, 5)]
            found = programs.get(keys, lambda places, keys=keys: [Program(keys[place]) for place in places])
            if [program.key for program in found] != keys:
                wrong.append(keys)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(programs) <= 13


def test_what_cannot_be_made_leaves_the_rest_as_it_was() -> None:
    programs = kept()
    get(programs, "a")

    def fail(_: Sequence[int]) -> list[Program]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        programs.get(["a", "b"], fail)
    assert get(programs, "a", "b")[1] == ["b"]


def cluster(prefix: str = "") -> Cluster:
    core = allowed_cores()[0]
    kind = "ort" if prefix else "openvino"
    devices = tuple(Device(name, kind, parse_device(f"{prefix}CPU@{core}")) for name in "ab")
    return Cluster(devices, {(a, b): Link(np.inf, 0.0) for a in "ab" for b in "ab" if a != b})


def torch_chain() -> Model:
    return load_torch(nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.ReLU()))), (torch.zeros(1, 8),))


def state_model() -> Model:
    x = ops.parameter([1, 8], ov.Type.f32, name="x")
    read = ops.read_value(ops.constant(np.zeros((1, 8), np.float32)), "v")
    total = ops.add(x, read)
    model = ov.Model([ops.result(ops.relu(total))], [ops.assign(total, "v")], [x], "state")
    return describe(model, Path("state"))


@pytest.mark.parametrize(
    ("model", "prefix"), [(inception_like, ""), (state_model, ""), (lambda: relu_chain(64, 6), "ort:"), (torch_chain, "")],
    ids=["OpenVINO", "OpenVINO with state", "ONNX Runtime", "PyTorch"],
)  # fmt: skip
def test_closing_lets_go_of_every_program_at_once(model: Callable[[], Model], prefix: str) -> None:
    gc.collect()
    gc.disable()
    try:
        with Session(model(), cluster(prefix), cache=None, constraints=Constraints(max_groups=8)) as session:
            segmenter = Segmenter(session.grouping, Costs.zero(len(session.grouping.groups), session.cluster))
            alternating = np.arange(len(session.grouping.groups), dtype=np.int32) % 2
            with session.executor(segmenter.plan(alternating, merge=False)) as executor:
                executor.time()
                programs = [weakref.ref(program) for program in executor.programs if program is not None]
            assert any(program() is not None for program in programs), "kept for the next plan"
        assert [program() for program in programs] == [None] * len(programs)
    finally:
        gc.enable()


@pytest.mark.two_cores
def test_equal_devices_share_the_program_of_what_runs_alone() -> None:
    cores = [f"CPU@{core}" for core in (allowed_cores()[0], allowed_cores()[-1])]
    with Session(inception_like(), cores, cache=None) as session, contextlib.ExitStack() as stack:
        groups = len(session.grouping.groups)
        plans = [Segmenter(session.grouping, Costs.zero(groups, session.cluster)).plan(np.full(groups, d)) for d in (0, 1)]
        made = [stack.enter_context(session.executor(plan, alone=True)) for plan in plans]
        inputs = session.model.random_inputs()
        first, second = (executor.run(inputs) for executor in made)
        assert all(np.array_equal(first[name], second[name]) for name in first)
        assert made[0].programs == made[1].programs
        beside = stack.enter_context(session.executor(plans[1]))
        assert beside.programs != made[1].programs


def test_a_device_forgets_what_it_ran_last() -> None:
    class Job:
        def __call__(self) -> None:
            ran.set()

    ran, job, worker = threading.Event(), Job(), Worker("forgetful")
    rest = weakref.ref(job)
    worker.submit(job)
    del job
    assert ran.wait(120)
    deadline = time.monotonic() + 120
    while rest() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert rest() is None
    worker.close()


def wide_model(layers: int = 16) -> Model:
    rng, x = np.random.default_rng(0), ops.parameter([1, 48, 14, 14], ov.Type.f32, name="x")
    values = [x.output(0)]
    for _ in range(layers):
        values.append(convolution(ops.add(values[-1], values[max(0, len(values) - 4)]).output(0), 48, 3, rng))
    return describe(ov.Model([ops.result(values[-1])], [x], "wide"), Path("wide"))


def placements(session: Session, count: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield rng.integers(0, 2, len(session.grouping.groups)).astype(np.int32)


@pytest.mark.parametrize("bound", [pytest.param(15e6, marks=pytest.mark.slow), 1e12])
def test_memory_is_bounded_by_what_programs_really_take(bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_compiler, "_KEPT_MODELS", 0)
    monkeypatch.setattr(segment_compiler, "_KEPT_BYTES", bound)
    model, counts = wide_model(), []
    assert model.graph.param_bytes.sum() < 2e6  # by weights alone nothing would be let go
    with Session(model, cluster(), cache=None) as session:
        segmenter = Segmenter(session.grouping, Costs.zero(len(session.grouping.groups), session.cluster))
        for placement in placements(session, 40):
            with session.executor(segmenter.plan(placement)) as executor:
                executor.time()
            counts.append(len(session.runtime.compiler._programs))
    let_go = sum(after < before for before, after in itertools.pairwise(counts))
    assert (let_go > 0) == (bound < 1e9)


@pytest.mark.slow
def test_programs_are_let_go_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_compiler, "_KEPT_PROGRAMS", 1)
    with Session(inception_like(), cluster(), cache=None) as session:
        groups = len(session.grouping.groups)
        segmenter = Segmenter(session.grouping, Costs.zero(groups, session.cluster))
        inputs = session.model.random_inputs()
        running = session.executor(segmenter.plan(np.arange(groups, dtype=np.int32) % 2))
        expected, stop, wrong = running.run(inputs), threading.Event(), []

        def run() -> None:
            while not stop.is_set():
                outputs = running.run(inputs)
                if any(not np.array_equal(outputs[name], expected[name]) for name in expected):
                    wrong.append(outputs)

        thread = threading.Thread(target=run)
        thread.start()
        for placement in placements(session, 12):
            with session.executor(segmenter.plan(placement)) as executor:
                executor.time()
        stop.set()
        thread.join()
        running.close()
    assert not wrong


@pytest.mark.two_cores
def test_cores_that_may_run_the_same_at_once_have_a_program_each() -> None:
    """Requests of one program of OpenVINO would wait for each other."""
    cores = allowed_cores()[:2]
    with Session(inception_like(), [f"CPU@{core}" for core in cores], cache=None) as session:
        groups = len(session.grouping.groups)
        segmenter = Segmenter(session.grouping, Costs.zero(groups, session.cluster))
        with contextlib.ExitStack() as stack:

            def programs(of: np.ndarray, device: int) -> list[object]:
                plan = segmenter.merged(of, np.full(groups, device, np.int32))
                executor = stack.enter_context(session.executor(plan))
                assert isinstance(executor, Executor)
                return [program for program in executor.programs if program is not None]

            whole, single = np.zeros(groups, np.int32), np.arange(groups, dtype=np.int32)
            assert programs(whole, 0)[0] is programs(whole, 0)[0]
            assert programs(whole, 0)[0] is not programs(whole, 1)[0]
            for one, other in zip(programs(single, 0), programs(single, 1), strict=True):  # as they are profiled, in turn
                assert one is other
