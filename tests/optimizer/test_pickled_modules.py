"""A placed module is pickled as its placement and a reference to a file with its program."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeit.backends.torch.model import load
from placeit.core.errors import DeviceError, FileError, UsageError
from placeit.devices.host import allowed_cores
from placeit.optimizer.result import Optimized
from placeit.workbench.options import Constraints, Inputs
from tests.steady import optimize
from tests.torch_models import Calling

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]
SPLIT = Constraints(pins={"first/*": CORES[0], "second/*": CORES[-1]})


class Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, scale: float = 1.0, *, bias: Tensor | None = None) -> dict[str, Any]:
        value = self.second(self.first(x).relu()) * scale
        return {"scores": value if bias is None else value + bias, "rest": (value, scale)}


@dataclasses.dataclass
class Pair:
    """A registered type."""

    first: Tensor
    second: Tensor


torch.export.register_dataclass(Pair, serialized_type_name="placeit_tests.pickled.Pair")


class Paired(nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x * 2, x)


class Unpaired(nn.Module):
    def forward(self, pair: Pair) -> Tensor:
        return pair.first + pair.second


def found_of(model: Any, *example: Any, **options: Any) -> Optimized:
    return optimize(model, CORES, example=example or None, budget=0.1, cache=None, **options)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


def again(placed: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(placed))


def scores(module: Callable[..., Any], values: list[list[float]]) -> list[list[float]]:
    return module(torch.tensor(values))["scores"].tolist()


@pytest.mark.two_cores
def test_a_split_computes_the_same_in_another_process(programs: Path) -> None:
    x = torch.randn(2, 4)
    context = multiprocessing.get_context("spawn")
    with found_of(Scored(), x, constraints=SPLIT) as found, concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        assert set(found.placement.as_dict().values()) == set(CORES)
        assert pool.submit(scores, found.module, x.tolist()).result() == found(x)["scores"].tolist()
    assert len([*programs.iterdir()]) == 1


def test_a_larger_module_is_saved_with_the_placed_one_and_its_hooks(programs: Path, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    with found_of(nn.Linear(4, 4), x) as found:
        expected, whole = -found(x.relu()), nn.Sequential(nn.ReLU(), found.module)
        whole[1].register_forward_hook(negated)
        torch.save(whole, tmp_path / "whole.pt")
        torch.save(whole, tmp_path / "whole.pt")
        loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
        torch.testing.assert_close(loaded(x), expected, rtol=0, atol=0)
        assert not loaded[1].training
        torch.testing.assert_close(again(loaded)(x), expected, rtol=0, atol=0)
    assert len([*programs.iterdir()]) == 1


def negated(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return -output


def test_it_is_called_as_before_with_names_and_defaults(programs: Path) -> None:
    x = torch.randn(2, 4)
    with found_of(Scored(), x, kwargs={"bias": torch.ones(3)}) as found:
        module = again(found.module)
        for bias in (torch.ones(3), torch.zeros(3)):
            torch.testing.assert_close(module(bias=bias, x=x, scale=1.0), found(x, bias=bias), rtol=0, atol=0)
        with pytest.raises(UsageError, match="'scale' was not in the example"):
            module(x, 2.0, bias=x)


def test_results_keep_registered_types_and_arguments_of_such_types_are_refused(programs: Path) -> None:
    x = torch.ones(2)
    with found_of(Paired(), x) as found:
        made = again(found.module)(x)
    assert isinstance(made, Pair)
    torch.testing.assert_close((made.first, made.second), (x * 2, x))
    with (
        found_of(Unpaired(), Pair(x, x)) as found,
        pytest.raises(UsageError, match=r"placed Unpaired cannot be pickled, because it takes a Pair.*found\.save"),
    ):
        pickle.dumps(found.module)


def test_open_sizes_stay_open(programs: Path) -> None:
    with found_of(Scored(), torch.randn(2, 4), inputs=Inputs(shapes={"x": ("1..8@2", 4)})) as found:
        module = again(found.module)
        for rows in (1, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(module(x), found(x), rtol=0, atol=0)


def test_a_program_of_a_file_is_referred_to_by_the_file(programs: Path, tmp_path: Path) -> None:
    x, path = torch.randn(2, 4), tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 4), (x,)), path)
    with found_of(path) as found:
        pickled = pickle.dumps(found.module)
        torch.testing.assert_close(pickle.loads(pickled)(x), found(x), rtol=0, atol=0)
        assert not programs.exists()
        torch.export.save(torch.export.export(nn.Linear(4, 4), (x,)), path)
        with pytest.raises(FileError, match=r"model\.pt2 has changed since .*: pickle the module again"):
            pickle.loads(pickled)
        torch.testing.assert_close(again(found.module)(x), found(x), rtol=0, atol=0)  # what runs is not what is there now
        assert programs.exists()
    path.unlink()
    with pytest.raises(FileError, match=r"Cannot read .*model\.pt2, the program of a pickled placed module: No such file"):
        pickle.loads(pickled)


def test_a_pickle_names_one_function_and_plain_values(programs: Path) -> None:
    with found_of(nn.Linear(4, 4), torch.randn(2, 4)) as found:
        pickled = pickle.dumps(found.module, protocol=2)
    named = {argument for opcode, argument, _ in pickletools.genops(pickled) if "GLOBAL" in opcode.name}
    assert named <= {"placeit.optimizer.placed_module unpickled", "collections OrderedDict", "__builtin__ set"}


def test_a_program_that_could_run_code_when_it_is_read_is_not_pickled(programs: Path) -> None:
    @torch.library.custom_op("placeit_tests::halved", mutates_args=())
    def halved(x: Tensor) -> Tensor:
        return x / 2

    halved.register_fake(torch.empty_like)
    with (
        found_of(Calling(lambda _, x: halved(x)), torch.ones(2, 4)) as found,
        pytest.raises(UsageError, match=r"placed Calling cannot be pickled.*placeit_tests.*found\.save"),
    ):
        pickle.dumps(found.module)
    assert not [*programs.iterdir()]


def test_devices_are_looked_for_where_it_is_unpickled(programs: Path) -> None:
    with found_of(nn.Linear(4, 4), torch.randn(2, 4)) as found:
        make, (path, digest, placement, cluster), _ = found.module.__reduce_ex__(2)
    with pytest.raises(DeviceError, match=r"A pickled placed module: .*4095"):
        make(path, digest, placement, cluster.replace(CORES[0], "CPU@4095"))


def test_only_the_module_of_a_result_is_pickled() -> None:
    model = load(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(UsageError, match=r"Only the module of a result of placeit\.optimize can be pickled"):
        pickle.dumps(model.called(model.reference(None, "f32")))
