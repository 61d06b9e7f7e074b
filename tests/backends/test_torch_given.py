"""Modules and examples that cannot be exported: one sentence says which tensor or line it is, and what to do."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import placeit
from placeit.backends.torch.model import load
from placeit.core.errors import ModelError, PlaceitError, UsageError
from placeit.devices.host import allowed_cores

X = torch.ones(2, 3)


def quantized(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


def converted(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(module, {nn.Linear})


def with_buffer(tensor: torch.Tensor) -> nn.Module:
    module = nn.Linear(3, 3)
    module.register_buffer("table", tensor)
    return module


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])


def changes(x: torch.Tensor) -> torch.Tensor:
    x[0] += 1
    return 2 * x


class Assigns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.data = self.scale.data * 2
        return x * self.scale


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draw = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=self.draw)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = 2 * x if self.last is None else self.last
        return x + self.last


def with_plain(tensor: torch.Tensor) -> nn.Module:
    module = nn.Linear(3, 3)
    module.table = tensor
    return nn.Sequential(module)


def scripted(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(module)


def gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad((x * x).sum(), x)[0]


def parallel(module: nn.Module) -> nn.Module:
    made = nn.DataParallel(module)
    made.device_ids = [0]  # as on a machine with a GPU
    return made


class Calling(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("module", "x", "says"),
    [
        (nn.Linear(3, 3, device="meta"), X, r"Linear: the weight 'weight' is on meta, .*to_empty"),
        (with_buffer(torch.ones(3, device="meta")), X, r"the weight 'table' is on meta, .*load_state_dict"),
        (nn.Linear(3, 3), X.to("meta"), r"Linear: the input 'input' is on meta, .*inputs on the CPU"),
        (nn.Linear(3, 3), quantized(X), r"the input 'input' has the quantised type torch\.quint8, .*dequantize\(\)"),
        (with_buffer(quantized(X)), X, r"the weight 'table' has the quantised type .*dequantize\(\)"),
        (converted(nn.Sequential(nn.Linear(3, 3))), X, r"has converted the module '0' to Linear, .*before that"),
        (nn.LazyLinear(2), X, r"the weight 'weight' is made by the first call .*call it once"),
        (Calling(quantized), X, r"called at line \d+ of .*test_torch_given\.py, makes a quantised tensor, .*integers"),
        (Calling(torch.Tensor.to_sparse), X, r"called at line \d+ of .*test_torch_given\.py, makes .*keep it dense"),
        (Calling(lambda x: x.sum().item()), X, r"called at line \d+ of .*makes a Python number .*in a tensor"),
        (Calling(lambda x: float(x.sum())), X, r"makes a Python number .* \(.*test_torch_given\.py, line \d+\), .*float\(\)"),
        (Calling(lambda x: x[: int(x.sum())]), X, r"makes a Python number .* \(.*test_torch_given\.py, line \d+\), .*int\(\)"),
        (Calling(lambda x: x.numpy), X, r"Found <class 'builtin.*> in output, .*: take and return tensors, or register it"),
        (Calling(lambda x: x.shape), X, r"Calling returns no tensor"),
        (nn.Linear(3, 3), X.numpy(), r"Linear: the input 'input' is a NumPy array, .*torch\.from_numpy"),
        (nn.ReLU(), nested(), r"ReLU: the input 'input' is a nested tensor, .*to_padded_tensor"),
        (Calling(changes), X, r"changes its input 'x' in place, at line \d+ of .*test_torch_given\.py, .*x\.clone\(\)"),
        (Calling(lambda x: torch.from_numpy(x.numpy())), X, r"Calling \(.*test_torch_given\.py, line \d+\): NumPy cannot"),
        (Calling(lambda x: {}["scale"]), X, r"Calling \(.*test_torch_given\.py, line \d+\): KeyError: 'scale'"),
        (Assigns(), X, r"Cannot export Assigns.*: it uses \.data, or keeps .*register_buffer"),
        (Calling(lambda x: x.data * 2), X, r"Cannot export Calling.*: it uses \.data, .*x\.detach\(\)"),
        (with_plain(torch.ones(3, device="meta")), X, r"Sequential: the weight '0\.table' is on meta"),
        (with_plain(torch.eye(3).to_sparse()), X, r"the weight '0\.table' has the layout torch\.sparse_coo.*to_dense\(\)"),
        (nn.Sequential(scripted(nn.Linear(3, 3))), X, r"Sequential: the module '0' is a TorchScript module, .*made of"),
        (
            Calling(lambda x: x.grad_fn(x)),
            X,
            r"Cannot export Calling .*line \d+\).*\. Call the module with the example, without",
        ),
        (nn.Linear(3, 3), torch.ones(2, 4), r"Cannot export Linear: .* got \[2, 4\].*\. Call the module with the example,"),
        (Calling(gradient), X, r"Calling \(.*line \d+\): it computes gradients, .*write them as ops"),
        (nn.Linear(3, 3), np.float32(1), r"the input 'input' is a NumPy float32, and modules take tensors .*float\(x\)"),
        (nn.Linear(3, 3), torch.float64, r"the input 'input' is a torch\.dtype, .*in an attribute of the module"),
        (Calling(lambda x: x.float()), X.to(torch.float8_e4m3fn), r"type float8_e4m3fn, .*convert it inside \(x\.to\)"),
        (parallel(nn.Linear(3, 3)), X, r"DataParallel divides batches among GPUs, .*give the module inside .*\.module\)"),
        (
            nn.Sequential(nn.ReLU(), nn.Linear(3, 3)),
            X.double(),
            r"op '1/linear' \(aten.* computes with torch\.float64 and torch\.float32, .* 'input' is torch\.float64\.",
        ),
        (nn.Linear(3, 3).bfloat16(), X, r"'linear' .*: the input 'input' is torch\.float32\. Convert the example"),
        (nn.LayerNorm(3), X.double(), r"'layer_norm' .*: the input 'input' is torch\.float64\. Convert the example \(x\.to\)"),
        (Calling(lambda x: x.double() @ torch.ones(3, 3)), X, r"'matmul' .*, called at .*type: convert them \(x\.to\)"),
        (Noisy(), X, r"Noisy: op 'rand', called at line \d+ of .*test_torch_given\.py, reads .*random numbers in place"),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_cannot_be_exported_is_refused_with_what_to_do(module: nn.Module, x: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load(module, (x,))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"example": 3}, r"'example' is of type int, .*\(example=\(x,\)\)"),
        ({"example": X.numpy()}, "'example' is of type ndarray"),
        ({"example": "image"}, "'example' is of type str"),
        ({"example": (X,), "kwargs": [X]}, "'kwargs' maps names of arguments to their values, and is of type list"),
    ],
)
def test_what_is_no_call_is_refused(call: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(nn.Linear(3, 3), **call)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (nn.Linear, r"^Linear is a class: give an instance of it, Linear\(\.\.\.\)\.$"),
        (lambda x: x, r"^A function is no module: give a torch\.nn\.Module that calls it in forward\.$"),
        (functools.partial(nn.Linear(3, 3)), "^A partial is no module: give a torch.nn.Module"),
        (nn.Linear(3, 3).forward, "^A method is no module: give a torch.nn.Module"),
        (nn.Linear(3, 3).state_dict(), r"^Weights are no program: .*load_state_dict\), and give the module"),
        (X, "^A Tensor is no model: give the path of a file, or a PyTorch module"),
    ],
)
def test_what_is_given_in_place_of_a_module_is_refused(source: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(source, (X,))


def test_an_op_that_fails_on_a_device_is_named_with_the_line_that_calls_it() -> None:
    module = Calling(lambda x: nn.functional.embedding(x.long() + 99, torch.ones(3, 3)))
    with pytest.raises(PlaceitError, match=r"in op 'embedding', called at line \d+ of .*test_torch_given\.py: .*out of range"):
        placeit.optimize(module, f"CPU@{allowed_cores()[0]}", example=X, budget=0.1, cache=None)


def test_half_types_with_norms_of_float32_are_accepted() -> None:
    model = load(nn.LayerNorm(3), (X.bfloat16(),))
    assert [spec.name for spec in model.inputs] == ["input"]


def test_a_tensor_that_a_module_keeps_in_an_attribute_is_named() -> None:
    with pytest.warns(UserWarning, match=r"attribute self\.last was assigned"):
        load(Keeps(), (X,))


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match=r"Linear cannot be called with the example: too many positional arguments\. Give"):
        load(nn.Linear(3, 3), (X, X))


def test_hooks_are_part_of_the_program_and_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].register_forward_hook(lambda *given: given[-1] * 2)
    model = load(module, (X,))
    (made,) = model.segment("torch", range(len(model.graph)), [], [])(X)
    torch.testing.assert_close(made, module(X))
    assert "Sequential has a hook at '0' (" in caplog.text
    assert "test_torch_given.py, line " in caplog.text


def test_a_module_in_training_mode_is_placed_for_evaluation_and_stays_in_its_mode() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).train()
    model = load(module, (X,))
    assert module.training
    (made,) = model.segment("torch", range(len(model.graph)), [], [])(X)
    torch.testing.assert_close(made, module.eval()(X))


def test_dropout_that_no_mode_switches_off_is_named_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    load(Calling(nn.functional.dropout), (X,))
    assert "called at line " in caplog.text
    assert "training=self.training" in caplog.text


@pytest.mark.parametrize("given", [(X,), X])
def test_inputs_without_names_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"'inputs' are arrays by name.*; got (tuple|Tensor)\. The arguments .* are 'example'"):
        placeit.optimize(nn.Linear(3, 3), f"CPU@{allowed_cores()[0]}", example=(X,), inputs=given)
