"""Segments of PyTorch programs on their way to another process."""

from __future__ import annotations

import pytest
import torch

from placeit.backends.torch.model import load
from placeit.backends.torch.portable import from_files, to_files
from placeit.backends.torch.supported_ops import calls_without_kernel
from placeit.core.errors import DeviceError


class Mixed(torch.nn.Module):
    """A layer with lists of weights, several results, types that NumPy lacks, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.norm = torch.nn.LSTM(8, 8, batch_first=True), torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, _ = self.recurrent(x)
        first, second = torch.cat([self.norm(y), y.bfloat16().float()], -1).chunk(2, -1)
        return first.transpose(0, 1), torch.nn.functional.gelu(second), torch.arange(3)


def test_a_segment_computes_the_same_after_its_way_and_its_ops_keep_their_names() -> None:
    model = load(Mixed().eval(), (torch.randn(2, 5, 8),))
    segment = model.segment("torch", range(len(model.graph)), [], [])
    files = to_files(segment)
    keys = ["", *map(str, range(1, len(files)))]
    arrived, again = from_files(files, keys), from_files(to_files(segment), keys)
    assert [node.name for node in arrived.graph.nodes] == [node.name for node in segment.graph.nodes]
    x = torch.randn(2, 5, 8)
    for found, wanted in zip(arrived(x), segment(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    pairs = list(zip(arrived.buffers(), again.buffers(), strict=True))
    assert pairs
    assert all(one.data_ptr() == other.data_ptr() for one, other in pairs)


def test_a_kernel_that_this_pytorch_lacks_is_found_by_the_number_of_its_call() -> None:
    model = load(Mixed().eval(), (torch.randn(2, 5, 8),))
    files = to_files(model.segment("torch", range(len(model.graph)), [], []))
    arrived = from_files(files, [""] * len(files))
    calls = [node for node in arrived.graph.nodes if node.op == "call_function" and "getitem" not in node.name]
    assert calls_without_kernel(arrived, "CPU") == []
    if not torch.backends.mps.is_built():
        assert calls_without_kernel(arrived, "MPS") == list(range(len(calls)))


def test_what_is_no_graph_is_not_sent() -> None:
    with pytest.raises(DeviceError, match="A ReLU is no graph"):
        to_files(torch.nn.ReLU())
