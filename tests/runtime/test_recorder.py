"""Launches are recorded once, behind a first launch, and replayed from then on."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from placeit.runtime.accelerators import torch_library
from placeit.runtime.accelerators.module_program import ModuleProgram
from placeit.runtime.accelerators.recorder import Recorder, Recording, StreamGraphs
from placeit.runtime.accelerators.torch_library import TorchLibrary


class Recorded:
    """Launches, and records by keeping the call; replays by making it."""

    def __init__(self, fails: int = 0) -> None:
        self.records = self.replays = 0
        self.fails = fails

    def record(self, launch: Any) -> Any:
        launch("recording")
        self.records += 1
        if self.records <= self.fails:
            return None

        def replay() -> None:
            self.replays += 1
            launch("replay")

        return replay


class Work:
    def __init__(self) -> None:
        self.launches: list[str] = []
        self.input, self.output = torch.zeros(2), torch.zeros(2)

    def __call__(self, stream: str) -> None:
        self.launches.append(stream)
        self.output.copy_(self.input + 1)


def test_a_launch_is_a_replay_from_the_second_on_that_reads_what_is_there_then() -> None:
    graphs, work = Recorded(), Work()
    go = Recorder(graphs, "own")
    for turn in range(3):
        work.input.fill_(turn)
        go(work)
        assert work.output.tolist() == [turn + 1, turn + 1]
    assert (graphs.records, graphs.replays) == (1, 2)
    assert go.recorded
    assert not go.refused


@pytest.mark.parametrize(("fails", "records", "replays"), [(1, 2, 3), (2, 2, 0)])
def test_what_cannot_be_recorded_is_launched_each_time_and_tried_once_more(fails: int, records: int, replays: int) -> None:
    graphs, work = Recorded(fails), Work()
    go = Recorder(graphs, "own")
    for turn in range(5):
        work.input.fill_(turn)
        go(work)
        assert work.output.tolist() == [turn + 1, turn + 1]
    assert (graphs.records, graphs.replays, len(work.launches)) == (records, replays, 5)
    assert go.refused is (fails == 2)
    assert work.launches.count("own") == (3 if fails == 2 else 0)


def test_records_end_with_what_launches_them() -> None:
    class Forgetful(Recorded):
        def record(self, launch: Any) -> Any:
            made = Recorded()
            kept.append(weakref.ref(made))
            return made.record

    kept: list[weakref.ref[Any]] = []
    go = Recorder(Forgetful(), "own")
    go(Work())
    assert kept[0]() is not None
    del go
    gc.collect()
    assert kept[0]() is None


class CudaStream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.name, self._cuda, self._before = name, cuda, list[CudaStream]()

    def wait_stream(self, other: CudaStream) -> None:
        self._cuda.told.append(f"{self.name} waits for {other.name}")

    def __enter__(self) -> None:
        self._before.append(self._cuda.current)
        self._cuda.current = self

    def __exit__(self, *_: object) -> None:
        self._cuda.current = self._before.pop()


class Cuda:
    """What of ``torch.cuda`` records a graph, which notes who waits for whom and what is launched where."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.streams = self.pools = 0
        self.here = self.Stream(None)
        self.current, self.broken = self.here, False

    def Stream(self, device: Any) -> Any:  # noqa: N802
        self.streams += 1
        return CudaStream(self, "compute" if self.streams == 1 else f"recording {self.streams - 1}")

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def current_stream(self, device: Any) -> Any:
        return self.current

    def CUDAGraph(self) -> Any:  # noqa: N802
        def begin(*, pool: int, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            self.told.append(f"record on {self.current.name} from pool {pool}")

        def end() -> None:
            if self.broken:
                raise RuntimeError("operation failed due to a previous error during capture")

        return SimpleNamespace(capture_begin=begin, capture_end=end, replay=lambda: None)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    for name in ("Stream", "graph_pool_handle", "current_stream", "CUDAGraph"):
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(torch_library, "_module", lambda kind: made)
    return made


def graphs_of(cuda: Cuda) -> StreamGraphs:
    device = torch.device("cuda", 0)
    return StreamGraphs(TorchLibrary("cuda"), device, Recording(lambda: cuda.Stream(device)))


def test_a_graph_is_recorded_behind_a_launch_on_a_stream_of_its_own(cuda: Cuda) -> None:
    def launch(stream: Any) -> None:
        assert stream is cuda.current
        cuda.told.append(f"launch on {stream.name}")

    graphs = graphs_of(cuda)
    around = ["recording 1 waits for compute", "launch on recording 1", "compute waits for recording 1"]
    record = ["record on recording 1 from pool 1", "launch on recording 1"]
    assert graphs.record(launch) is not None
    assert cuda.told == around + record
    cuda.broken = True
    assert graphs.record(launch) is None
    cuda.told.clear()
    cuda.broken = False
    assert graphs.record(launch) is not None  # on another stream, from another pool
    assert cuda.told == [line.replace("recording 1", "recording 2").replace("pool 1", "pool 2") for line in around + record]
    assert cuda.current is cuda.here


def test_streams_of_a_device_record_on_one_stream_and_have_pools_of_their_own(cuda: Cuda) -> None:
    device = torch.device("cuda", 0)
    recording = Recording(lambda: cuda.Stream(device))
    for graphs in [StreamGraphs(TorchLibrary("cuda"), device, recording) for _ in range(2)]:
        graphs.record(lambda stream: None)
    assert [line for line in cuda.told if "pool" in line] == [f"record on recording 1 from pool {pool}" for pool in (1, 2)]


def test_a_launch_that_fails_is_no_failure_to_record(cuda: Cuda) -> None:
    def launch(stream: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        graphs_of(cuda).record(launch)
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
