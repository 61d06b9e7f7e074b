"""PyTorch models from end to end: profiled, placed, run, and compared with the uncut module."""

from __future__ import annotations

import functools
import gc
import pickle
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from placeit.backends.torch.model import TorchModel, load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, UsageError
from placeit.devices import parse_device
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.support import supported
from placeit.runtime.devices.kernels import group_shares
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.drivers import drive
from placeit.runtime.group_times import groups_as_kernels
from placeit.runtime.runtime import Runtime
from placeit.session import Session, optimize
from tests.torch_models import Calling, ConvNet, Transformer, check_remembering, remembering

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]
CORE = allowed_cores()[:1]
TWO = Cluster(tuple(Device(name, address=Address("CPU", CORE)) for name in "ab"))


@functools.cache
def model_of(name: str) -> tuple[nn.Module, TorchModel]:
    torch.manual_seed(0)
    if name == "conv net":
        module: nn.Module = ConvNet()
        return module, load(module, (torch.randn(1, 3, 16, 16),))
    module = Transformer()
    return module, load(module, (torch.randint(20, (2, 8)),))


@pytest.fixture(params=["conv net", "transformer"])
def both(request: pytest.FixtureRequest) -> tuple[nn.Module, TorchModel]:
    return model_of(request.param)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    model = model_of("transformer")[1]
    with Runtime(model, Grouping.singletons(model.graph), drive(TWO, model)) as opened:
        yield opened


def test_one_core_under_two_names_that_mean_pytorch_is_refused() -> None:
    named = tuple(Device(name, name.partition(":")[0], parse_device(name)) for name in (f"torch:{CORES[0]}", f"ort:{CORES[0]}"))
    plain = Device(CORES[0], address=Address("CPU", CORE))
    model = model_of("conv net")[1]
    assert [device.kind for device in drive(Cluster((plain, named[1])), model).devices] == ["torch", "ort"]
    with pytest.raises(DeviceError, match=f"'{CORES[0]}' and 'torch:{CORES[0]}' are one: the same cores, the same runtime"):
        drive(Cluster((plain, named[0])), model)


def test_a_placement_computes_what_the_module_does(both: tuple[nn.Module, TorchModel], cache: Cache) -> None:
    module, model = both
    inputs = model.random_inputs(seed=7)
    with Session(model, ",".join(CORES), cache=cache) as session:
        costs = session.profile()
        assert np.isfinite(costs.core).all()
        assert (costs.dispatch > 0).all()
        groups = np.random.default_rng(0).integers(len(CORES), size=len(session.grouping.groups))
        report = session.run(session.placement(groups), runs=6, inputs=inputs)
    assert report.output_error.max_rel < 1e-5
    ran = [name for span in report.spans for name in span.ops]
    assert sorted(ran) == sorted(set(ran))
    module.eval()
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(*map(torch.from_numpy, inputs.values())))
    for spec, value in zip(model.outputs, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(report.outputs[spec.name]), value)


def test_any_placement_of_single_ops_computes_the_same(runtime: Runtime) -> None:
    """Whether neighbours are merged or not, and whatever ran before in the same buffers."""
    model = runtime.model
    run = model.reference(None, "f32")
    segmenter = Segmenter(runtime.grouping, Costs.zero(len(model.graph), runtime.cluster))
    for seed in range(6):
        placement = np.random.default_rng(seed).integers(2, size=len(model.graph))
        executor = runtime.executor(segmenter.plan(placement, merge=seed % 2 == 0), in_flight=2)
        for again in range(2):
            inputs = model.random_inputs(seed=again)
            outputs = executor.run(inputs)
            for name, value in run(inputs).items():
                np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-5)


def test_outputs_that_are_inputs_or_constants_are_handed_over(cache: Cache) -> None:
    def odd(module: nn.Module, x: torch.Tensor, unused: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return module.w, x, x + 1, x + 1, module.w * 2

    x = torch.ones(2)
    model = load(Calling(odd, w=torch.full((3,), 5.0)), (x, x))
    with Session(model, TWO, cache=cache) as session:
        session.profile()
        report = session.run(session.placement(np.arange(len(session.grouping.groups)) % 2), runs=1)
    assert report.output_error.max_abs == 0
    np.testing.assert_array_equal(report.outputs["output.4"], [10, 10, 10])


def test_every_request_starts_from_the_initial_state(cache: Cache) -> None:
    def count(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        module.seen += x.sum()
        return x.relu() * module.seen + module.seen

    model = load(Calling(count, seen=torch.zeros(())), (torch.ones(4),))
    with Session(model, TWO, cache=cache) as session:
        session.profile()
        (sharers,) = model.together
        assert len({int(session.grouping.group_of[model.graph.index[name]]) for name in sharers}) == 1
        report = session.run(session.placement(np.arange(len(session.grouping.groups)) % 2), runs=3)
    assert report.output_error.max_abs == 0


def test_a_sequence_continues_from_buffers_of_any_type_and_its_outputs_stay_as_they_are(cache: Cache) -> None:
    with Session(load(remembering(), (torch.ones(2, 3),)), TWO, cache=cache) as session:
        session.profile(budget_s=0.1)
        placement = session.placement(np.arange(len(session.grouping.groups)) % 2)
        with session.serve(placement) as server, server.sequence() as sequence:
            check_remembering(sequence)
            assert sequence.state_bytes == 8 + 2 * 6 + 4 * 6


def test_shares_of_groups_are_not_negative_and_sum_to_one(both: tuple[nn.Module, TorchModel]) -> None:
    model = both[1]
    grouping = Grouping.singletons(model.graph)
    shares = group_shares(groups_as_kernels(model, grouping, drive(TWO, model).devices[0], passes=3), grouping)
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0).all()
    kinds = np.array(model.graph.kinds)
    assert (shares[(kinds != "Parameter") & (kinds != "Result")] > 0).all()


def test_a_torch_device_runs_torch_models_only_and_openvino_the_others() -> None:
    torch_model = model_of("conv net")[1]
    core = Device("a", address=Address("CPU", CORE))
    with pytest.raises(DeviceError, match="OpenVINO drives a, and it did not read ConvNet"):
        supported(torch_model, Grouping.singletons(torch_model.graph), Cluster((core,)))
    with pytest.raises(DeviceError, match=r"a is a device of kind 'null'.*openvino.*torch"):
        device_kind(Device("a", kind="null"))


def test_emulated_devices_and_links_take_torch_models(cache: Cache) -> None:
    model = model_of("conv net")[1]
    slow = Cluster((TWO.devices[0], Device("b", address=Address("CPU", CORE), slowdown=4.0)))
    with Session(model, slow, cache=cache) as session:
        session.profile()
        report = session.run(session.placement(np.arange(len(session.grouping.groups)) % 2), runs=3)
    assert report.output_error.max_rel < 1e-5
    assert report.cluster.emulated_names == ["b"]


class Scored(nn.Module):
    """Nested arguments and results, one of them by name only, one a number, and an attribute that its callers read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.config = nn.Linear(4, 3), {"width": 4}

    def forward(self, input: dict[str, torch.Tensor], scale: float = 1.0, *, mask: torch.Tensor) -> dict[str, object]:  # noqa: A002
        value = self.layer(input["x"]) * scale
        return {"scores": value, "rest": (value * mask, None, scale)}


def test_a_placed_module_is_called_as_the_module_was() -> None:
    module = Scored()
    x, mask = torch.randn(2, 4), torch.tensor([1.0, 0.0, 1.0])
    with optimize(module, CORES[0], example=({"x": x}, 2.0), kwargs={"mask": mask}, budget=0.1, cache=None) as placed:
        with torch.no_grad():
            expected = module({"x": -x}, 2.0, mask=mask)
        for made in (placed({"x": -x}, 2.0, mask=mask), placed.module(mask=mask, scale=2.0, input={"x": -x})):
            torch.testing.assert_close(made, expected)
        assert placed.module.config is module.config
        assert not placed.module.training
        for args, kwargs, why in (
            (({"x": x}, 2.0), {}, "'mask' is missing"),
            (({"x": x}, 3.0), {"mask": mask}, r"'scale' is 3\.0, and the module was placed for 2\.0"),
            ((x, 2.0), {"mask": mask}, "nested"),
            (({"x": x}, 2.0), {"mask": mask, "more": x}, "'more' was not in the example"),
            (({"x": torch.zeros(3, 4)}, 2.0), {"mask": mask}, "expects float32"),
        ):
            with pytest.raises(UsageError, match=why):
                placed(*args, **kwargs)
        with pytest.raises(UsageError, match="for inference only"):
            placed.module.train()
        with pytest.raises(UsageError, match=r"cannot be copied or pickled: save its placement"):
            pickle.dumps(placed)


def test_an_executor_ends_with_the_result_and_its_module_and_waits_for_no_collector() -> None:
    before, x = set(threading.enumerate()), torch.ones(1, 4)
    gc.disable()
    try:
        placed = optimize(nn.Linear(4, 4), CORES[0], example=x, budget=0.1, cache=None)
        expected, module = placed(x), placed.module
        del placed
        torch.testing.assert_close(module(x), expected)
        assert set(threading.enumerate()) - before
        del module
        assert set(threading.enumerate()) <= before
    finally:
        gc.enable()


def test_what_is_no_model_and_arguments_of_no_module_are_refused() -> None:
    with pytest.raises(UsageError, match="A list is no model: give the path of a file, or a PyTorch module"):
        optimize([], CORES[0])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"net\.onnx: 'example' and 'kwargs' are arguments of PyTorch modules"):
        optimize("net.onnx", CORES[0], example=(1,))
    with pytest.raises(UsageError, match="is loaded already"):
        optimize(model_of("conv net")[1], CORES[0], example=(1,))


def test_torch_compile_takes_placeit_as_a_backend() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
            self.last.weight = self.first.weight

        def forward(self, x: torch.Tensor, more: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": self.last(self.norm(self.first(x))) + more, "x": x}

    module, options = Tied().eval(), {"devices": CORES[0], "budget": 0.1, "cache": None}
    x, more = torch.randn(2, 4), torch.randn(2, 4)
    try:
        with torch.no_grad():
            compiled = torch.compile(module, backend="placeit", options=options, dynamic=False)
            for sign in (1, -1):
                torch.testing.assert_close(compiled(sign * x, more=more), module(sign * x, more))
            with pytest.raises(BackendCompilerFailed, match="the argument dynamic=False"):
                torch.compile(module, backend="placeit", options=options, dynamic=True)(x, more)
            with pytest.raises(BackendCompilerFailed, match=r"no option 'budgett' \(did you mean 'budget'"):
                torch.compile(Tied().eval(), backend="placeit", options={"budgett": 1}, dynamic=False)(x, more)
            with torch.autocast("cpu"), pytest.raises(BackendCompilerFailed, match=r"not under torch\.autocast"):
                compiled(x, more=more)
    finally:
        torch._dynamo.reset()


def test_each_module_that_shares_a_compiled_graph_keeps_its_weights_and_buffers_stay_as_they_are() -> None:
    options, x = {"devices": CORES[0], "budget": 0.1, "cache": None}, torch.randn(2, 4)

    def count(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        module.seen += 1
        return x + module.seen

    counter = Calling(count, seen=torch.zeros(()))
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    try:
        with torch.no_grad():
            compiled = torch.compile(lambda module, x: module(x).relu(), backend="placeit", options=options, dynamic=False)
            for module in (first, second, first):
                torch.testing.assert_close(compiled(module, x), module(x).relu())
            first.weight.mul_(2)
            with pytest.raises(UsageError, match=r"'weight' has changed .*call torch\._dynamo\.reset"):
                compiled(first, x)
            torch.testing.assert_close(compiled(second, x), second(x).relu())
            torch._dynamo.reset()
            torch.testing.assert_close(compiled(first, x), first(x).relu())
            with pytest.raises(BackendCompilerFailed, match=r"changes buffers of the module.*out of torch\.compile"):
                torch.compile(counter, backend="placeit", options=options, dynamic=False)(x)
            assert counter.seen == 0
    finally:
        torch._dynamo.reset()


def test_torch_compile_leaves_a_placed_part_of_a_larger_module_as_it_is() -> None:
    part, x = nn.Linear(4, 4), torch.randn(2, 4)
    try:
        with optimize(part, CORES[0], example=(x,), budget=0.1, cache=None) as placed, torch.no_grad():
            compiled = torch.compile(nn.Sequential(nn.ReLU(), placed.module), backend="eager")
            for sign in (1, -1):
                torch.testing.assert_close(compiled(sign * x), part((sign * x).relu()))
    finally:
        torch._dynamo.reset()
