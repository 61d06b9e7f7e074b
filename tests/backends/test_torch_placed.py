"""Calls of placed PyTorch modules: all that the module accepts is accepted, or refused in a sentence."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeit.backends.torch.model import load
from placeit.backends.torch.placed import PlacedModule
from placeit.core.errors import UsageError

X = torch.tensor([1.0, -2.0])


class Several(nn.Module):
    def forward(self, x: dict[str, Tensor], o: Tensor | None = None, a: float = 1.0, *, flag: bool = True) -> Tensor:
        value = x["x"] * a + (x["y"] if flag else 0)
        return value if o is None else value + o


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x - 2 * y


@dataclasses.dataclass
class Checked:
    """A registered type whose constructor accepts tensors only."""

    value: Tensor

    def __post_init__(self) -> None:
        self.value = self.value.clone()


torch.export.register_dataclass(Checked)


class Wrapped(nn.Module):
    def forward(self, x: Checked) -> Tensor:
        return x.value + 1


def called(module: nn.Module, *args: Any, **kwargs: Any) -> PlacedModule:
    model = load(module, args, kwargs=kwargs)
    return model.called(model.reference(None, "f32"))


@pytest.fixture(scope="module")
def several() -> PlacedModule:
    return called(Several(), {"x": X, "y": 3 * X}, None, 2.0)


def test_keys_in_another_order_and_defaults_are_accepted(several: PlacedModule) -> None:
    swapped = {"y": X, "x": -X}
    expected = Several()(swapped, None, 2.0)
    for args, kwargs in (
        ((swapped, None, 2.0), {}),
        ((swapped,), {"a": 2.0}),
        ((swapped, None, 2.0), {"flag": True}),
        ((), {"a": 2.0, "x": swapped, "flag": True}),
    ):
        torch.testing.assert_close(several(*args, **kwargs), expected)
    torch.testing.assert_close(called(Pair(), x=X, y=-X)(y=X, x=-X), Pair()(-X, X))


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        (({"x": X, "y": X}, None, X), {}, r"^The argument 'a' is a tensor, and the module was placed for 2\.0\.$"),
        (({"x": X, "y": X}, X, 2.0), {}, "^The argument 'o' is a tensor, and the module was placed for None.$"),
        (({"x": X, "y": X}, None, np.ones(2)), {}, "'a' is of type ndarray"),
        (({"x": X, "y": X},), {}, r"'a' is 1\.0, and the module was placed for 2\.0"),
        (({"x": X, "y": 2},), {"a": 2.0}, "'x_y' is 2, and the module was placed for a tensor"),
        (({"x": X, "y": X}, None, 2.0), {"x": {}}, "'x' is given twice, by position and by name"),
        (({"x": X, "y": X}, None, 2.0), {"flag": False}, "'flag' was not in the example, which has x, o, a"),
        (({"x": X, "y": X}, None, 2.0, X), {}, "4 arguments by position, and the module was placed with 3"),
        (({"x": X},), {"a": 2.0}, r"nested as \({'x': \*}, \*, \*\), and in the example .* as \({'x': \*, 'y': \*}, \*, \*\)"),
        ((), {"a": 2.0}, "'x' is missing"),
    ],
)
def test_calls_that_the_placement_is_not_for_are_refused(
    several: PlacedModule, args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        several(*args, **kwargs)


def test_a_tensor_may_be_the_example_of_several_arguments() -> None:
    torch.testing.assert_close(called(Pair(), X, y=X)(X, y=-X), 3 * X)


def test_tensors_in_any_form_are_read() -> None:
    torch.testing.assert_close(called(Pair(), X, y=X)(X.clone().requires_grad_(), y=torch._neg_view(X)), 3 * X)


def test_a_nested_argument_in_place_of_a_tensor_is_refused() -> None:
    with pytest.raises(UsageError, match="'y' is of type list, and the module was placed for a tensor"):
        called(Pair(), X, y=X)(X, y=[X])


def test_registered_types_are_shown_without_their_constructors() -> None:
    with pytest.raises(UsageError, match=r"nested as \(\*\), and in the example they were nested as \(Checked\(\*\)\)"):
        called(Wrapped(), Checked(X))(X)


def test_arguments_of_a_program_from_a_file_are_matched_by_name_in_any_order(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Pair(), (X,), {"y": -X}), tmp_path / "pair.pt2")
    model = load(tmp_path / "pair.pt2")
    placed = model.called(model.reference(None, "f32"))
    torch.testing.assert_close(placed(X, y=-X), 3 * X)
    with pytest.raises(UsageError, match="2 arguments by position, and the module was placed with 1"):
        placed(X, X)
    with pytest.raises(UsageError, match="'y' is missing"):
        placed(X)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (X.double(), r"'input' is torch\.float64, and the module was placed for torch\.float32: convert it"),
        (X.long(), r"'input' is torch\.int64"),
        (X.to("meta"), r"'input' is no dense tensor with values.*PyTorch says: .*meta"),
        (X.to_sparse(), "'input' is no dense tensor with values.*to_dense"),
    ],
)
def test_tensors_of_another_type_or_without_dense_values_are_refused(x: Tensor, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        called(nn.ReLU(), X)(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated")
def test_a_placed_module_is_not_exported_again() -> None:
    with pytest.raises(UsageError, match="use the original module"):
        load(called(nn.ReLU(), X), (X,))
    with pytest.raises(UsageError, match=r"torch\.func"):
        torch.vmap(called(nn.ReLU(), X))(X.expand(2, 2))
    with pytest.raises(UsageError, match=r"cannot be traced, as its results would be constants"):
        torch.jit.trace(called(nn.ReLU(), X), (X,))


def test_autocast_around_the_export_or_a_call_has_no_effect() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2))
    with torch.autocast("cpu", torch.bfloat16):
        made = called(module, X)(X)
    torch.testing.assert_close(made, module(X).detach())


def test_results_are_the_same_under_every_mode_of_gradients_and_have_none() -> None:
    module = nn.Linear(2, 2)
    placed, wanted = called(module, X), module(X).detach()
    with torch.inference_mode():
        torch.testing.assert_close(placed(X), wanted)
    made = placed(X.clone().requires_grad_())
    assert not made.requires_grad
    torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize(
    "move",
    [
        lambda one: one.double(),
        lambda one: one.to(torch.bfloat16),
        lambda one: one.to("meta"),
        lambda one: one.to_empty(device="meta"),
    ],
)
def test_a_placed_module_is_not_moved_or_converted(move: Callable[[nn.Module], nn.Module]) -> None:
    placed = called(nn.Linear(2, 2), X)
    for module in (placed, nn.Sequential(placed, nn.ReLU())):
        with pytest.raises(UsageError, match="convert the original one, and place it again"):
            move(module)
        assert module.to("cpu", torch.float32).eval() is module


def test_copies_run_the_same_placement_and_have_their_own_hooks() -> None:
    module = nn.Linear(2, 2)
    whole = nn.Sequential(called(module, X))
    for copied in (copy.deepcopy(whole), nn.Sequential(copy.copy(whole[0]))):
        copied[0].register_forward_hook(lambda *given: given[-1] * 0)
        torch.testing.assert_close(copied(X), torch.zeros(2))
        torch.testing.assert_close(whole(X), module(X).detach())
