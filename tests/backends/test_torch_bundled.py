"""Segments of PyTorch programs as files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

from placeit.backends.torch.bundled import read_segment, write_segment
from placeit.backends.torch.model import load


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
