"""PyTorch models on devices that are driven through streams, from end to end.

The accelerator is the CPU with streams that run everything at once; the core sets beside it are real, with their own threads.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from placeit.backends.torch.model import load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, ExecutionError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.learning.workloads import tensor_program
from placeit.measuring.check import OutputDifference
from placeit.optimizer.options import Candidates
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.support import supported
from placeit.runtime.accelerators.torch_library import open_torch, torch_streams
from placeit.runtime.drivers import drive
from placeit.runtime.runtime import Runtime
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.eager_streams import devices, run_at_once
from tests.steady import optimize
from tests.torch_models import ConvNet, Transformer

CORES = allowed_cores()[:2]


@pytest.fixture
def eager(monkeypatch):
    """Have PyTorch's device ``cpu`` pass for an accelerator."""
    run_at_once(monkeypatch)


def core_set(core, name=None):
    return Device(name or f"CPU@{core}", kind="torch", address=Address("CPU", (core,)))


MIXED = Cluster((*devices("cpu"), core_set(CORES[0])))


def conv_net():
    torch.manual_seed(0)
    return load(ConvNet(), (torch.randn(1, 3, 16, 16),))


def plan_of(model, cluster, seed):
    grouping = Grouping.singletons(model.graph)
    place = np.random.default_rng(seed).integers(len(cluster), size=len(model.graph))
    return grouping, Segmenter(grouping, Costs.zero(len(model.graph), cluster)).plan(place, merge=bool(seed % 2))


@pytest.mark.parametrize("cluster", [Cluster(tuple(devices("cpu", "cpu:0"))), MIXED], ids=["accelerators", "with a core set"])
def test_a_placement_found_there_computes_what_the_module_does(eager, cache, cluster):
    model = conv_net()
    ops = model.graph.names
    halves = (2 * np.arange(len(ops)) // len(ops)).astype(np.int32)
    split = Placement(tuple(ops), halves, tuple(cluster.names), model.graph.hash)  # measured, however slow it is
    found = optimize(
        model, cluster, budget=60.0, candidates=Candidates(start=split), cache=cache, constraints=Constraints(max_groups=8)
    )
    assert found.chosen.output_error.max_rel < 1e-5
    inputs = model.random_inputs(seed=3)
    reference = model.reference(None, "f32")(inputs)
    assert OutputDifference.between(found.run(inputs), reference).max_rel < 1e-5
    measured = [candidate for candidate in found.candidates if candidate.measured]
    assert any(len([n for n in candidate.placement.counts().values() if n]) == 2 for candidate in measured)
    with Session(model, cluster, cache=cache, constraints=Constraints(max_groups=8)) as session:
        session.profile()
        assert (session.costs.dispatch > 0).all()
        split = session.placement(np.arange(len(session.grouping.groups)) % 2)
        report = session.run(split, runs=6, inputs=inputs)
    assert OutputDifference.between(report.outputs, reference).max_rel < 1e-5
    assert all(0 < report.utilization[name] <= 1 for name in cluster.names)
    ran = [op for span in report.spans for op in span.ops]
    assert sorted(ran) == sorted(set(ran))


@pytest.mark.two_cores
def test_core_sets_run_side_by_side_and_wait_for_each_other():
    model = load(Transformer(), (torch.randint(20, (2, 8)),))
    run = model.reference(None, "f32")
    cluster = Cluster(tuple(map(core_set, CORES)))
    accelerator = open_torch(cluster.devices)
    for seed in range(6):
        grouping, plan = plan_of(model, cluster, seed)
        runtime = Runtime(model, grouping, cluster, streams=torch_streams(accelerator))
        with runtime.executor(plan, in_flight=2) as executor:
            for number in range(4):
                inputs = model.random_inputs(number)
                assert OutputDifference.between(executor.run(inputs), run(inputs)).max_rel < 1e-5
            executor.times(6)
        assert all(" -> " not in str(route) and route[0] == route[1] for route in executor.layout.routes)  # nothing is copied
    accelerator.close()


@pytest.mark.timeout(60)
def test_after_its_session_is_closed_an_executor_is_an_error_and_not_a_wait_for_ever():
    model = load(torch.nn.ReLU(), (torch.randn(4),))
    cluster = Cluster((core_set(CORES[0]),))
    accelerator = open_torch(cluster.devices)
    grouping, plan = plan_of(model, cluster, 0)
    executor = Runtime(model, grouping, cluster, streams=torch_streams(accelerator)).executor(plan)
    executor.time()
    accelerator.close()
    for _ in range(2):
        with pytest.raises(ExecutionError, match="is closed, and nothing more can run there"):
            executor.time()
    executor.close()
    with pytest.raises(ExecutionError, match="make a new one"):
        executor.time()


def test_a_core_set_beside_an_accelerator_has_copies_on_streams_of_the_accelerator(eager):
    model = load(Transformer(), (torch.randint(20, (2, 8)),))
    run = model.reference(None, "f32")
    accelerator = open_torch(MIXED.devices)
    for seed in range(6):
        grouping, plan = plan_of(model, MIXED, seed)
        runtime = Runtime(model, grouping, MIXED, streams=torch_streams(accelerator))
        with runtime.executor(plan, in_flight=2) as executor:
            for number in range(4):
                inputs = model.random_inputs(number)
                assert OutputDifference.between(executor.run(inputs), run(inputs)).max_rel < 1e-5
            executor.times(6)
            moved = {span.where for span in executor.spans() if span.kind == "copy"}
            assert {("cpu", f"CPU@{CORES[0]}"), (f"CPU@{CORES[0]}", "cpu")} <= moved
    accelerator.close()


@pytest.mark.parametrize("name", ["ffnn", "llama-block"])
def test_tensor_programs_run_there_as_well(eager, cache, name):
    sizes = {"ffnn": {"batch": 24, "features": 6, "hidden": 20}, "llama-block": {"tokens": 12, "width": 16, "heads": 2}}
    model = tensor_program.tensor_model(name, shards=2, **sizes[name])
    with Session(model, MIXED, cache=cache) as session:
        session.profile()
        report = session.run(session.placement(np.arange(len(session.grouping.groups)) % 2), runs=2)
    assert report.output_error.max_rel < 1e-4


def test_an_op_that_fails_on_a_core_set_is_named_and_leaves_the_device_as_good_as_before(eager, cache):
    class Cut(torch.nn.Module):
        def forward(self, table, at):
            return torch.relu(table)[at] + 1

    model = load(Cut(), (torch.randn(5, 3), torch.tensor([1, 2])))
    with Session(model, MIXED, cache=cache) as session:
        session.profile()
        plan = session.segmenter.plan(np.ones(len(session.grouping.groups), int))
        good = {"table": np.ones((5, 3), np.float32), "at": np.array([0, 4])}
        with session.executor(plan) as executor:
            with pytest.raises(ExecutionError, match=rf"CPU@{CORES[0]} refused op 'index.*: index 9 is out of bounds"):
                executor.run(good | {"at": np.array([0, 9])})
            np.testing.assert_array_equal(executor.run(good)["output"], np.full((2, 3), 2.0))
        with session.executor(plan) as executor:
            np.testing.assert_array_equal(executor.run(good)["output"], np.full((2, 3), 2.0))


def test_what_pytorch_has_no_kernel_for_is_not_placed_there(eager, monkeypatch):
    model = conv_net()
    asked = []
    monkeypatch.setattr(type(model), "with_kernel", lambda self, key: asked.append(key) or set(model.graph.names))
    cluster = drive(Cluster((Device("cuda:0", kind="cuda", address=Address("cuda:0")), core_set(CORES[0]))), model)
    assert supported(model, Grouping.singletons(model.graph), cluster).all()
    assert sorted(asked) == ["CPU", "CUDA"]


def test_a_gpu_runs_pytorch_models_by_pytorch_and_says_what_is_missing_without_one():
    model = conv_net()
    cluster = Cluster((Device("cuda:0", kind="cuda", address=Address("cuda:0"), driver="NVIDIA 1.2"),))
    (device,) = drive(cluster, model).devices
    assert device.kind == "torch"
    assert device.driver == f"PyTorch {torch.__version__}, NVIDIA 1.2"
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match=r"built without CUDA: install one built with it|finds no GPU to use: check that"):
            Runtime(model, Grouping.singletons(model.graph), drive(cluster, model))


SLOW = Device("slow", kind="torch", address=Address("CPU", CORES[:1]), slowdown=2.0)
BOTH_WAYS = [("cpu", f"CPU@{CORES[0]}"), (f"CPU@{CORES[0]}", "cpu")]
PACED = {
    "a slowed core set": Cluster((*devices("cpu"), SLOW)),
    "a slowed accelerator": Cluster((replace(*devices("cpu"), slowdown=1.5), core_set(CORES[0]))),
    "emulated links": Cluster(MIXED.devices, {ends: Link(1e9, 1e-4, "emulated") for ends in BOTH_WAYS}),
    "two accelerators": Cluster((*devices("cpu"), replace(*devices("cpu:0"), slowdown=1.5))),
    "all of it": Cluster((*devices("cpu", "cpu:0"), SLOW), {("cpu", "slow"): Link(1e9, 1e-4, "emulated")}),
}


@pytest.mark.parametrize(
    "what",
    [what if what in ("a slowed core set", "all of it") else pytest.param(what, marks=pytest.mark.slow) for what in PACED],
)
def test_beside_what_is_slowed_down_on_purpose_the_host_paces_an_accelerator(eager, what):
    """And says so; outputs are right however the model is cut, also where what comes in or goes out is on an accelerator."""
    cluster = PACED[what]
    own = [device.name for device in cluster.devices if not device.core_set]
    for model in (conv_net(), load(Transformer(), (torch.randint(20, (2, 8)),))):
        run = model.reference(None, "f32")
        for seed in range(4):
            grouping, plan = plan_of(model, cluster, seed)
            with Runtime(model, grouping, cluster) as runtime, runtime.executor(plan, in_flight=2) as executor:
                assert list(executor.host_paced) == [name for name in own if cluster.names.index(name) in used_by(plan)]
                for number in range(3):
                    inputs = model.random_inputs(number)
                    assert OutputDifference.between(executor.run(inputs), run(inputs)).max_rel < 1e-5
                assert executor.times(5) > 0
                moved = {span.where for span in executor.spans() if span.kind == "copy"}
                planned = zip(plan.schedule.transfers.src.tolist(), plan.schedule.transfers.dst.tolist(), strict=True)
                assert moved <= {(cluster.names[src], cluster.names[dst]) for src, dst in planned}
                assert moved


def used_by(plan):
    return {segment.device for segment in plan.programs}


def test_a_run_says_which_devices_the_host_has_paced(eager, cache):
    with Session(conv_net(), PACED["emulated links"], cache=cache, constraints=Constraints(max_groups=6)) as session:
        session.profile()
        report = session.run(session.placement(np.arange(len(session.grouping.groups)) % 2), runs=2)
        assert report.host_paced == ("cpu",)
        assert report.output_error.max_rel < 1e-4
        assert set(report.utilization) >= {"cpu", f"CPU@{CORES[0]}"}
        alone = session.run(session.placement(np.ones(len(session.grouping.groups), int)), runs=1)
        assert alone.host_paced == ()
    with Session(conv_net(), MIXED, cache=cache, constraints=Constraints(max_groups=6)) as session:
        session.profile()
        report = session.run(session.placement(np.arange(len(session.grouping.groups)) % 2), runs=2)
        assert report.host_paced == ()


def test_convolutions_on_gpus_do_not_round_to_tf32_and_others_do_as_before(monkeypatch):
    from placeit.runtime.accelerators import torch_library

    class Gpus:
        @staticmethod
        def device_count():
            return 1

    monkeypatch.setattr(torch_library, "_module", lambda kind: Gpus)
    before = torch.backends.cudnn.allow_tf32
    accelerator = open_torch(devices("cuda:0"))
    assert torch.backends.cudnn.allow_tf32 is False
    accelerator.close()
    assert torch.backends.cudnn.allow_tf32 is before


GPU = Device("cuda:0", kind="torch", address=Address("cuda:0"))
one_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a PyTorch built with CUDA")


@pytest.mark.gpu
@one_gpu
@pytest.mark.parametrize("cluster", [Cluster((GPU, core_set(CORES[0]))), Cluster((GPU, SLOW))], ids=["ahead", "host-paced"])
def test_on_a_gpu_beside_a_core_set_outputs_are_right_however_the_model_is_cut(cluster):
    model = conv_net()
    run = model.reference(None, "f32")
    for seed in range(4):
        grouping, plan = plan_of(model, cluster, seed)
        with Runtime(model, grouping, cluster) as runtime, runtime.executor(plan, in_flight=2) as executor:
            for number in range(3):
                inputs = model.random_inputs(number)
                assert OutputDifference.between(executor.run(inputs), run(inputs)).max_rel < 1e-4
            assert executor.times(5) > 0
            assert all(span.seconds > 0 for span in executor.spans() if span.kind == "compute")


@pytest.mark.gpu
@one_gpu
@pytest.mark.parametrize("names", ["cuda:0", f"cuda:0,CPU@{CORES[0]}"])
def test_on_a_gpu_a_placement_computes_what_the_module_does(cache, names):
    model = conv_net()
    found = optimize(model, names, budget=5.0, cache=cache)
    inputs = model.random_inputs(seed=3)
    assert found.chosen.output_error.max_rel < 1e-4
    assert OutputDifference.between(found.run(inputs), model.reference(None, "f32")(inputs)).max_rel < 1e-4
