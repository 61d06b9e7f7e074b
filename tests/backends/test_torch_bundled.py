"""Segments of PyTorch programs as files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

from placeit.backends.torch.bundled import read_segment, write_segment
from placeit.backends.torch.model import load
from tests.torch_models import Calling


def test_several_threads_write_segments_at_once_as_compiling_does(tmp_path: Path) -> None:
    model = load(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), (torch.ones(2, 3),))
    segment = model.segment("torch", range(len(model.graph)), [], [])

    def written(number: int) -> Path:
        file = tmp_path / f"{number}.pt2"
        write_segment(segment, file, file)
        return file

    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(written, range(8)))
    (made,) = read_segment(files[-1], [0], [0])(torch.ones(2, 3))
    torch.testing.assert_close(made, segment(torch.ones(2, 3))[0])


def test_weights_that_are_parts_of_another_tensor_are_written_without_a_warning(tmp_path: Path) -> None:
    table, x = torch.arange(12.0), torch.ones(3)
    model = load(Calling(lambda module, x: (x + module.part, x * module.steps), part=table[2:5], steps=table[::4]), (x,))
    write_segment(model.segment("torch", range(len(model.graph)), [], []), tmp_path / "one.pt2", tmp_path)
    made = read_segment(tmp_path / "one.pt2", [0], [0, 1])(x)
    torch.testing.assert_close(made, (x + table[2:5], x * table[::4]))
