"""Modules and programs that cannot be placed: each is refused, or announced, with the op and what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from placeit.backends.torch.model import load
from placeit.core.errors import DeviceError, ModelError
from tests.torch_models import Calling, X, calling


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda _, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), r"op 'cond' .*torch\.where"),
        (lambda _, x: x * x.sum().item(), r"op 'item' \(aten\.item\.default\), called at .*, makes a .* number .*\.item\(\)"),
        (lambda _, x: x if x.sum() > 0 else x + 1, r"control flow depends on data \(.*\.py, line \d+\)"),
        (lambda _, x: x.nonzero(), r"op 'nonzero' \(aten\.nonzero\.default\), called at .*, makes a tensor of shape \[u0, 2\]"),
        (lambda _, x: x[x > 0].sum(), r"op 'index' \(aten\.index\.Tensor\).*size depends on the data.*mask"),
        (lambda _, x: x.add_(1), r"changes its input 'x' in place.*x\.clone\(\)"),
        (lambda _, x: x.as_strided((2, 2), (1, 1)), r"op 'as_strided' .*reads memory by strides.*slices"),
        (lambda _, x: x.to_sparse(), r"op '\w*sparse\w*'"),
        (
            lambda _, x: x.to(torch.complex64),
            r"output 'output' has type complex64, which is not a type of NumPy's.*convert it inside",
        ),
        (lambda _, x: torch.complex(x, x), r"output 'output' has type complex64.*torch\.view_as_real"),
        (lambda _, x: torch.while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,)), r"op 'while_loop' .*number of steps"),
        (lambda _, x: None, r"small returns no tensor"),
        (lambda _, x: x.to("meta"), r"what op '\w+' \(aten\S+\) makes is on meta.*module\.cpu\(\)"),
        (
            lambda _, x: Path("/none/such").read_text(),
            r"Cannot export small \(.*, line \d+\): .*/none/such",
        ),
        (lambda _, x: x @ x, r"Cannot export small \(.*test_torch_refused\.py, line \d+\)"),
        (lambda _, x: x.no_such_thing(), r"Cannot export small .*no_such_thing"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_op_and_what_to_do(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        calling(function)


def test_a_failed_export_prints_no_more_than_the_module_does(capfd: pytest.CaptureFixture[str]) -> None:
    def told(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        sys.stderr.write("told\n")
        return x if x.sum() > 0 else x + 1

    for function in (told, lambda _, x: x.view(7), lambda _, x: x @ x):
        with pytest.raises(ModelError):
            load(Calling(function), (X,))
    assert set(capfd.readouterr().err.splitlines()) == {"told"}


def test_a_module_without_example_inputs_is_refused() -> None:
    with pytest.raises(ModelError, match="Linear: a module is exported by calling it: give the arguments of a call"):
        load(nn.Linear(2, 2))


def test_weights_elsewhere_than_in_memory_are_refused() -> None:
    with pytest.raises(ModelError, match=r"the weight 'weight' is on meta.*module\.cpu\(\)"):
        load(nn.Linear(3, 2, device="meta"), (X.to("meta"),))


def test_example_inputs_elsewhere_than_in_memory_are_refused() -> None:
    with pytest.raises(ModelError, match=r"the input 'input' is on meta.*module\.cpu\(\)"):
        load(nn.ReLU(), (X.to("meta"),))


@pytest.mark.parametrize(("x", "buffers"), [(X.to_sparse(), {}), (X, {"w": torch.eye(3).to_sparse()})])
def test_sparse_inputs_and_weights_are_refused(x: torch.Tensor, buffers: dict[str, torch.Tensor]) -> None:
    module = Calling(lambda m, x: torch.sparse.mm(m.w if buffers else x, torch.eye(3)), **buffers)
    with pytest.raises(ModelError, match=r"'[xw]' has the layout torch\.sparse_coo.*to_dense"):
        load(module, (x,), name="small")


def test_a_custom_op_that_changes_its_argument_is_named() -> None:
    @torch.library.custom_op("placeit_tests::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    def bumped(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        bump(y)
        return y

    with pytest.raises(ModelError, match=r"\(placeit_tests\.bump\.default\) changes a tensor in place"):
        calling(bumped)


@pytest.mark.filterwarnings("ignore:A model attribute `lifted_tensor_0` requires gradient")
def test_the_op_that_cannot_be_lowered_is_named() -> None:
    with pytest.raises(ModelError, match=r"\(op '\w+', torch\.ops\.higher_order\.\w+\)"):
        calling(lambda _, x: torch.func.grad(lambda y: (y * y).sum())(x))


def test_random_numbers_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    calling(lambda _, x: x + torch.rand(3))
    assert "small draws random numbers (op 'rand', called at line " in caplog.text


def attention(_: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x)


def dropping_attention(_: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


@pytest.mark.parametrize(
    ("module", "draws"),
    [
        (Calling(attention), False),
        (Calling(dropping_attention), True),
        (nn.LSTM(3, 4, num_layers=2, dropout=0.5).eval(), False),
        (nn.GRU(3, 4).eval(), False),
        (nn.RNN(3, 4, num_layers=2).train(), False),
        (nn.GRU(3, 4, num_layers=2, dropout=0.5).train(), True),
        (nn.MultiheadAttention(4, 2, dropout=0.5).eval(), False),
        (nn.RReLU().eval(), False),
        (nn.RReLU().train(), True),
    ],
    ids=["attention", "attention, dropping", "lstm", "gru", "rnn", "gru, training", "multi-head", "rrelu", "rrelu, training"],
)
def test_ops_with_a_dropout_of_their_own_draw_numbers_only_if_it_is_on(
    module: nn.Module, draws: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "program.pt2"
    inputs = (torch.ones(2, 1, 4),) * 3 if isinstance(module, nn.MultiheadAttention) else (torch.ones(2, 1, 3),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, inputs), path)
    load(path)
    assert ("draws random numbers" in caplog.text) == draws


def test_what_fails_uncut_is_a_device_error() -> None:
    model = calling(lambda _, x: torch.complex(x, x).relu().abs())  # PyTorch has no such kernel
    with pytest.raises(DeviceError, match=r"PyTorch cannot run small uncut on the CPU: .*complex"):
        model.reference(None, "f32")({"x": X.numpy()})


def test_the_batch_cannot_be_changed_by_option() -> None:
    with pytest.raises(ModelError, match=r"^Linear: the batch of a PyTorch program is fixed by its example inputs"):
        load(nn.Linear(3, 2), (X,), batch=2)
