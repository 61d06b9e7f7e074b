"""Launches are recorded once for each set of addresses, behind a first launch, and replayed from then on."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from placeit.runtime.accelerators.module_program import ModuleProgram
from placeit.runtime.accelerators.recorder import CudaGraphs, Recorder


class Recorded:
    """Launches, and records by keeping the call; replays by making it."""

    def __init__(self, fails: int = 0) -> None:
        self.records = self.replays = 0
        self.fails = fails

    def record(self, program: Any, inputs: Any, outputs: Any) -> Any:
        program.launch(inputs, outputs)
        self.records += 1
        if self.records <= self.fails:
            return None

        def replay() -> None:
            self.replays += 1
            program.launch(inputs, outputs)

        return SimpleNamespace(replay=replay)


class Program:
    replayable = True

    def __init__(self) -> None:
        self.launches = 0

    def launch(self, inputs: Any, outputs: Any) -> None:
        self.launches += 1
        outputs[0].copy_(inputs[0] + 1)


def test_a_launch_at_known_addresses_is_a_replay_that_reads_what_is_there_then() -> None:
    graphs, program = Recorded(), Program()
    recorder = Recorder(graphs)
    places = [([torch.zeros(2)], [torch.zeros(2)]) for _ in range(2)]
    for turn in range(3):
        for inputs, outputs in places:
            inputs[0].fill_(turn)
            recorder.launch(program, inputs, outputs)
            assert outputs[0].tolist() == [turn + 1, turn + 1]
    assert (graphs.records, graphs.replays) == (2, 4)


@pytest.mark.parametrize(("fails", "records", "replays"), [(1, 2, 3), (2, 2, 0)])
def test_what_cannot_be_recorded_is_launched_each_time_and_tried_once_more(fails: int, records: int, replays: int) -> None:
    graphs, program = Recorded(fails), Program()
    recorder, inputs, outputs = Recorder(graphs), [torch.zeros(2)], [torch.zeros(2)]
    for turn in range(5):
        inputs[0].fill_(turn)
        recorder.launch(program, inputs, outputs)
        assert outputs[0].tolist() == [turn + 1, turn + 1]
    assert (graphs.records, graphs.replays, program.launches) == (records, replays, 5)


def test_records_end_with_their_program() -> None:
    class Forgetful(Recorded):
        def record(self, program: Any, inputs: Any, outputs: Any) -> Any:
            made = Recorded()
            kept.append(weakref.ref(made))
            return made

    kept: list[weakref.ref[Any]] = []
    recorder, program = Recorder(Forgetful()), Program()
    recorder.launch(program, [torch.zeros(2)], [torch.zeros(2)])
    assert kept[0]() is not None
    del program
    gc.collect()
    assert kept[0]() is None


class Cuda:
    """What of ``torch.cuda`` records a graph, which notes who waits for whom and what is launched where."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.streams = self.pools = 0
        self.here = self.Stream(None)
        self.current, self.broken = self.here, False

    def Stream(self, device: Any) -> Any:  # noqa: N802
        name = "compute" if self.streams == 0 else f"recording {self.streams}"
        self.streams += 1
        return SimpleNamespace(name=name, wait_stream=lambda other: self.told.append(f"{name} waits for {other.name}"))

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def current_stream(self, device: Any) -> Any:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def CUDAGraph(self) -> Any:  # noqa: N802
        def begin(*, pool: int, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            self.told.append(f"record on {self.current.name} from pool {pool}")

        def end() -> None:
            if self.broken:
                raise RuntimeError("operation failed due to a previous error during capture")

        return SimpleNamespace(capture_begin=begin, capture_end=end)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    for name in ("Stream", "graph_pool_handle", "current_stream", "stream", "CUDAGraph"):
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    return made


def test_a_graph_is_recorded_behind_a_launch_on_a_stream_of_its_own(cuda: Cuda) -> None:
    launched = SimpleNamespace(launch=lambda inputs, outputs: cuda.told.append(f"launch on {cuda.current.name}"))
    graphs = CudaGraphs(torch.device("cuda", 0))
    around = ["recording 1 waits for compute", "launch on recording 1", "compute waits for recording 1"]
    record = ["record on recording 1 from pool 1", "launch on recording 1"]
    assert graphs.record(launched, [], []) is not None
    assert cuda.told == around + record
    cuda.broken = True
    assert graphs.record(launched, [], []) is None
    cuda.told.clear()
    cuda.broken = False
    assert graphs.record(launched, [], []) is not None  # on another stream, from another pool
    assert cuda.told == [line.replace("recording 1", "recording 2").replace("pool 1", "pool 2") for line in around + record]
    assert cuda.current is cuda.here


def test_a_launch_that_fails_is_no_failure_to_record(cuda: Cuda) -> None:
    def launch(inputs: Any, outputs: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        CudaGraphs(torch.device("cuda", 0)).record(SimpleNamespace(launch=launch), [], [])  # type: ignore[arg-type]
    assert cuda.told == ["recording 1 waits for compute", "compute waits for recording 1"]


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + 1,)


class Chosen(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.ops.aten.nonzero.default(x),)


class Noise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.ops.aten.rand_like.default(x),)


@pytest.mark.parametrize(
    ("module", "replayable"), [(Sum(), True), (Chosen(), False), (Noise(), False)], ids=["sum", "chosen", "noise"]
)
def test_ops_that_depend_on_values_or_seeds_are_never_recorded(module: torch.nn.Module, *, replayable: bool) -> None:
    there = torch.device("cpu")
    assert ModuleProgram(torch.fx.symbolic_trace(module)).load(there).replayable is replayable  # type: ignore[attr-defined]
    assert ModuleProgram(module).load(there).replayable is False  # type: ignore[attr-defined]
