"""Launches are recorded once for each set of addresses, behind a first launch, and replayed from then on."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from placeit.runtime.accelerators.module_program import ModuleProgram
from placeit.runtime.accelerators.recorder import Recorder


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
