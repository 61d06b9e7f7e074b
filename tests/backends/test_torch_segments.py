"""PyTorch programs uncut and in segments: they compute what the module does, on devices with kernels for their ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import placeit.backends
from placeit.backends.torch.model import TorchModel, load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.planning.coarsen import coarsen
from placeit.runtime.drivers import drive
from tests.torch_models import Calling, Transformer, X, calling, conv_net, transformer


@pytest.mark.parametrize("net", [conv_net, transformer])
def test_the_program_uncut_is_the_module_in_evaluation_mode(net: Callable[[], tuple[nn.Module, TorchModel]]) -> None:
    module, model = net()
    inputs = model.random_inputs(seed=3)
    module.eval()
    with torch.no_grad():
        expected = module(*(torch.from_numpy(value) for value in inputs.values()), *([0.5] if net is transformer else []))
    module.train()
    leaves = torch.utils._pytree.tree_leaves(expected)
    ours = model.reference(None, "f32")(inputs)
    whole = model.segment("torch", range(len(model.graph)), [], [])(*(torch.from_numpy(value) for value in inputs.values()))
    for spec, leaf, cut in zip(model.outputs, leaves, whole, strict=True):
        torch.testing.assert_close(torch.from_numpy(ours[spec.name]), leaf)
        torch.testing.assert_close(cut, leaf)


class Counting(nn.Module):
    """Counts its calls in a buffer, and then looks rows up in a table."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return table[rows] + self.calls


def test_an_uncut_run_that_fails_leaves_the_buffers_of_the_module_as_they_were() -> None:
    module = Counting()
    model = load(module, (torch.ones(2, 1), torch.tensor([1])))
    inputs = model.random_inputs()
    run = model.reference(None, "f32")
    with pytest.raises(DeviceError, match="uncut"):
        run({name: np.full_like(value, 9) for name, value in inputs.items()})
    assert module.calls == 0
    (result,) = run(inputs).values()
    np.testing.assert_allclose(result, inputs["table"][inputs["rows"]] + 1)
    assert module.calls == 0


@pytest.mark.parametrize("net", [conv_net, transformer])
def test_a_model_cut_into_groups_computes_the_same(net: Callable[[], tuple[nn.Module, TorchModel]]) -> None:
    model = net()[1]
    graph, grouping = model.graph, coarsen(model.graph)
    inputs = model.random_inputs(seed=1)
    values: dict[int, torch.Tensor] = {}
    made: dict[str, torch.Tensor] = {}
    by_op = {spec.op: spec.name for spec in (*model.inputs, *model.outputs)}
    for group in range(len(grouping.groups)):
        ops = np.flatnonzero(grouping.group_of == group).tolist()
        edges = list(zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True))
        entering = sorted({t for (u, v), t in edges if v in ops and u not in ops})
        leaving = sorted({t for (u, v), t in edges if u in ops and v not in ops})
        ends = [by_op[graph.names[v]] for v in ops if graph.kinds[v] == "Result"]
        own = [torch.from_numpy(inputs[by_op[graph.names[v]]]) for v in ops if graph.kinds[v] == "Parameter"]
        outputs = model.segment("torch", ops, entering, leaving)(*(values[t] for t in entering), *own)
        values |= zip(leaving, outputs, strict=False)
        made |= zip(ends, outputs[len(leaving) :], strict=True)
    expected = model.reference(None, "f32")(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(made[name].numpy(), value, rtol=1e-5, atol=1e-5)


def test_weights_of_segments_are_buffers_that_share_the_models_memory() -> None:
    module, model = conv_net()
    segment = model.segment("torch", range(len(model.graph)), [], [])
    assert not list(segment.parameters())
    addresses = {buffer.data_ptr() for buffer in segment.buffers()}
    assert module.stem.weight.data_ptr() in addresses
    segment.to(torch.float64)  # what moving a segment elsewhere does
    assert module.stem.weight.dtype is torch.float32


def test_the_same_program_has_the_same_ops_however_it_comes(tmp_path: Path) -> None:
    model = transformer()[1]
    path = tmp_path / "saved.pt2"
    torch.export.save(model.program, path)
    again = placeit.backends.load(path)
    assert again.name == "saved"
    assert again.graph.hash == model.graph.hash == load(model.program).graph.hash
    inputs = model.random_inputs()
    assert {name: value.tolist() for name, value in again.random_inputs().items()} == {
        name: value.tolist() for name, value in inputs.items()
    }
    np.testing.assert_array_equal(
        again.reference(None, "f32")(inputs)["output.0"], model.reference(None, "f32")(inputs)["output.0"]
    )


def test_open_sizes_are_fixed_by_the_example_inputs(caplog: pytest.LogCaptureFixture) -> None:
    batch = torch.export.Dim("batch", min=2, max=10)
    program = torch.export.export(nn.Linear(3, 4), (X,), dynamic_shapes=({0: batch},))
    assert load(program).inputs[0].shape == (2, 3)
    assert "program has open sizes, and is placed for the sizes of its example inputs only: give ranges" in caplog.text
    assert load(program, torch.ones(5, 3)).inputs[0].shape == (5, 3)


def test_keyword_arguments_and_constants_are_known_by_their_names() -> None:
    module = Transformer()
    model = load(module, {"ids": torch.zeros(1, 4, dtype=torch.long), "scale": 2.0})
    assert [spec.name for spec in model.inputs] == ["ids"]
    assert model.random_inputs()["ids"].tolist() == [[0, 0, 0, 0]]
    assert model.reference(None, "f32")(model.random_inputs())["output.0"].shape == (1, 4, 20)


def test_no_grad_inside_a_program_is_no_obstacle() -> None:
    def doubled(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return y + 1

    program = torch.export.export(Calling(doubled), (X,))
    assert load(program).graph.kinds == ("Parameter", "mul", "add", "Result")


def count_and_keep(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.seen += 1
    module.cache[0] = x[0]
    return module.cache.sum(0) * module.seen


def test_a_module_in_bfloat16_computes_in_it_and_has_float32_at_its_border() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).bfloat16(), torch.randn(2, 8).bfloat16()
    model = load(module, x)
    assert [(spec.dtype, spec.shape) for spec in (*model.inputs, *model.outputs)] == [("float32", (2, 8))] * 2
    assert "bfloat16" in model.graph.tensor_dtypes
    inputs = {"input": x.float().numpy()}
    whole = model.segment("torch", range(len(model.graph)), [], [])
    with torch.no_grad():
        expected = module(x)
        (made,) = whole(x.float())
        result = model.called(model.reference(None, "f32"))(x)
    assert result.dtype is torch.bfloat16
    for value in (made.bfloat16(), result, torch.from_numpy(model.reference(None, "f32")(inputs)["output"]).bfloat16()):
        torch.testing.assert_close(value, expected)


def test_state_is_kept_together_and_every_run_starts_from_the_initial_one() -> None:
    module = Calling(count_and_keep, seen=torch.zeros(()), cache=torch.ones(2, 3))
    model = load(module, (X,))
    grouping = coarsen(model.graph, keep_together=model.together)
    kinds = [{model.graph.kinds[model.graph.index[name]] for name in sharers} for sharers in model.together]
    assert kinds == [{"add", "copy"}, {"select", "select_scatter", "copy"}]
    for sharers in model.together:
        assert len({int(grouping.group_of[model.graph.index[name]]) for name in sharers}) == 1
    assert [(spec.name, spec.shape, spec.dtype) for spec in model.states] == [
        ("seen", (), "float32"),
        ("cache", (2, 3), "float32"),
    ]
    run, inputs = model.reference(None, "f32"), {"x": X.numpy()}
    for _ in range(2):
        np.testing.assert_array_equal(run(inputs)["output"], X[0].numpy() + 1)
    assert module.seen == 0
    assert (module.cache == 1).all()


def test_a_segment_computes_where_its_inputs_are() -> None:
    model = calling(lambda _, x: x.to("cpu", torch.float64) + torch.zeros_like(x, device="cpu"))
    segment = model.segment("torch", range(len(model.graph)), [], [])
    assert segment(X.to("meta"))[0].device.type == "meta"


def test_a_segment_takes_its_inputs_in_any_order_of_memory() -> None:
    model = calling(lambda _, x: x.t().exp().t().view(-1) + 1)
    graph = model.graph
    ops = [graph.index[name] for name in ("view", "add")]
    enter = [t for (_, v), t in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True) if v == ops[0]]
    segment = model.segment("torch", ops, enter, [int(np.flatnonzero(graph.tensor_op == ops[1])[0])])
    for value in (X, X.t().contiguous().t()):
        assert segment(value)[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_cpu_core_sets_are_driven_by_pytorch_and_other_devices_by_openvino_at_one_size() -> None:
    model = conv_net()[1]
    core, described = Device("a", address=Address("CPU", (0,)), driver="OpenVINO"), Device("b", kind="described")
    driven = drive(Cluster((core, described)), model)
    assert [device.kind for device in driven.devices] == ["torch", "described"]
    assert driven.devices[0].driver == f"PyTorch {torch.__version__}"
    gpu = Cluster((Device("GPU.0", address=Address("GPU.0")),))
    assert [device.kind for device in drive(gpu, model).devices] == ["openvino"]
    half = load(torch.nn.Linear(2, 2).bfloat16(), (torch.zeros(1, 2, dtype=torch.bfloat16),))
    with pytest.raises(DeviceError, match=r"OpenVINO drives GPU\.0, and Linear is a PyTorch model.*placeit export"):
        drive(gpu, half)


def test_ops_without_a_kernel_are_not_supported() -> None:
    model = conv_net()[1]
    assert model.with_kernel("CPU") == set(model.graph.names)
    assert "stem/conv2d" in model.graph.names
    if not torch.backends.mps.is_built():  # in other builds composite ops have no kernel either
        assert {model.graph.kinds[model.graph.index[name]] for name in model.with_kernel("MPS")} == {"Parameter", "Result"}


@pytest.mark.parametrize(
    ("function", "lacks"),
    [
        (lambda _, x: torch.complex(x, x).relu().abs(), {"relu"}),
        (lambda _, x: torch.special.bessel_j0(x.bfloat16()).float() + torch.special.bessel_j0(x), {"special_bessel_j0"}),
        (lambda _, x: (x.bfloat16() @ x.bfloat16().t()).relu().float(), set()),
        (lambda _, x: torch.ones(3)[x.long().clamp(0, 2)] / x.gather(1, x.long()), set()),
    ],
)
def test_an_op_without_a_kernel_for_its_type_is_not_supported(function: Callable[..., Any], lacks: set[str]) -> None:
    model = calling(function)
    assert set(model.graph.names) - model.with_kernel("CPU") == lacks
