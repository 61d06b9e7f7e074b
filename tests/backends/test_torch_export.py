"""PyTorch programs as ONNX and OpenVINO IR: they compute the same, keep names of outputs, and no format takes some ops."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from torch import nn

import placeit.backends
from placeit.backends.convert import convert
from placeit.backends.torch.model import TorchModel, load
from placeit.core.errors import ModelError, UsageError
from tests.torch_models import Calling, calling, conv_net, remembering, transformer

X = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]])


def relu_twice(_: Any, x: torch.Tensor) -> Any:
    y = x.relu()
    return y, x, y


@pytest.mark.parametrize("suffix", [".xml", ".onnx"])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda _, x: (x, x), {"output.0": X, "output.1": X}),
        (lambda _, x: {"a": x, "b": x.relu(), "c": x}, {"a": X, "b": X.relu(), "c": X}),
        (relu_twice, {"output.0": X.relu(), "output.1": X, "output.2": X.relu()}),
        (lambda _, x: (x.relu(), x.relu().view(2, 3)), {"output.0": X.relu(), "output.1": X.relu()}),
    ],
    ids=["input twice", "input twice by name", "output twice", "output and view"],
)
def test_a_tensor_that_is_returned_twice_keeps_both_names(
    function: Callable[..., Any], expected: dict[str, torch.Tensor], suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"twice{suffix}"
    convert(load(Calling(function), (X,)), path)
    model = placeit.backends.load(path)
    assert [spec.name for spec in model.inputs] == ["x"]
    found = model.reference(None, "f32")({"x": X.numpy()})
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy())
    if suffix == ".xml":  # and without placeit
        plain = ov.compile_model(path, "CPU")
        assert plain({"x": X.numpy()})[0].tolist() == found[next(iter(expected))].tolist()


def test_an_ir_keeps_the_state_and_starts_from_its_initial_value(tmp_path: Path) -> None:
    module, path = remembering(), tmp_path / "remembering.xml"
    convert(load(module, (X,)), path)
    assert len(placeit.backends.load(path).states) == 3
    plain = ov.compile_model(path, "CPU").create_infer_request()
    for x in (X, 2 * X, -X):
        found = plain.infer({"x": x.numpy()})
        for one, expected in zip(found.values(), module(x), strict=True):
            np.testing.assert_array_equal(one, expected.numpy())


@pytest.mark.parametrize(("suffix", "first", "second"), [(".onnx", "ONNX", "IR"), (".xml", "IR", "ONNX")])
def test_what_neither_format_takes_is_one_error_with_both_reasons(suffix: str, first: str, second: str, tmp_path: Path) -> None:
    model = load(Calling(lambda _, x: torch.hypot(x, x)), (X,))
    with pytest.raises(ModelError, match=rf"neither as .*{first}: .*hypot.*; nor as .*{second}: .*hypot") as caught:
        convert(model, tmp_path / f"neither{suffix}")
    assert not re.search(r"write an \.", str(caught.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".xml", ".onnx"])
def test_an_input_may_be_called_input(suffix: str, tmp_path: Path) -> None:
    convert(load(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), (X,)), tmp_path / f"model{suffix}")
    assert [spec.name for spec in placeit.backends.load(tmp_path / f"model{suffix}").inputs] == ["input"]


def test_what_one_format_takes_is_recommended(tmp_path: Path) -> None:
    model = load(Calling(lambda _, x: x.erfinv()), (X,))
    with pytest.raises(ModelError, match=r"as ONNX: .*erfinv.* or write an \.xml file"):
        convert(model, tmp_path / "one.onnx")
    convert(model, tmp_path / "one.xml")
    assert (tmp_path / "one.xml").exists()


@pytest.mark.parametrize("net", [conv_net, transformer])
@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_model_that_is_written_in_another_format_computes_the_same(
    tmp_path: Path, net: Callable[[], tuple[nn.Module, TorchModel]], suffix: str
) -> None:
    model = net()[1]
    path = tmp_path / f"model{suffix}"
    convert(model, path)
    written = placeit.backends.load(path)
    assert [(spec.name, spec.shape, spec.dtype) for spec in written.inputs] == [
        (spec.name, spec.shape, spec.dtype) for spec in model.inputs
    ]
    assert [(spec.name, spec.shape) for spec in written.outputs] == [(spec.name, spec.shape) for spec in model.outputs]
    inputs = model.random_inputs(seed=2)
    ours, theirs = model.reference(None, "f32")(inputs), written.reference(None, "f32")(inputs)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-4, atol=1e-4)


def write_into(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    value = x * 2
    value[:, 0] = 7.0
    value[0].mul_(3)
    value[:, ::2] = x[:, ::2]
    return value


def nothing_but_structure(_: nn.Module, x: torch.Tensor, pair: Any, unread: torch.Tensor, word: str) -> dict[str, Any]:
    return {"a": [x + pair[0], (pair[1]["k"],)], "b": 2, "": x.to(torch.int32) if word else unread}


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
@pytest.mark.parametrize(
    ("function", "others"), [(write_into, ()), (nothing_but_structure, ((X + 1, {"k": X + 2}), X + 3, "word"))]
)
def test_assignments_and_nested_arguments_survive_another_format(
    tmp_path: Path, function: Callable[..., Any], others: tuple[Any, ...], suffix: str
) -> None:
    model = calling(function, *others)
    convert(model, tmp_path / f"model{suffix}")
    written = placeit.backends.load(tmp_path / f"model{suffix}")
    inputs = model.random_inputs(seed=2)
    ours = model.reference(None, "f32")(inputs)
    theirs = written.reference(None, "f32")({spec.name: inputs[spec.name] for spec in written.inputs})
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-5)


def test_nothing_is_printed_when_another_format_lacks_an_op(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"fft_rfft.*not supported.*another way"):
        convert(calling(lambda _, x: torch.fft.rfft(x).abs()), tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")


def test_an_op_that_another_format_does_not_have_is_named(tmp_path: Path) -> None:
    model = calling(lambda _, x: torch.special.bessel_j0(x))
    for suffix in (".onnx", ".xml"):
        with pytest.raises(ModelError, match="bessel_j0"):
            convert(model, tmp_path / f"model{suffix}")
    assert not list(tmp_path.iterdir())


def test_a_format_that_nothing_writes_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.onnx.*\.xml"):
        convert(conv_net()[1], tmp_path / "model.pt2")
