"""GPUs that fail while they compile or run: what is left runs, and what is said names the device and the op."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import placeit
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.errors import DeviceError, ExecutionError, NoRoomError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.optimizer.options import Candidates
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.recorded_plugins import GPU, RecordedCore, recorded, thrown
from tests.steady import STEADY

__all__ = ["recorded"]

See = Callable[..., RecordedCore]
ops = ov.opset13
CORE = f"CPU@{allowed_cores()[0]}"


def branches() -> OpenVinoModel:
    """Two branches of matrix products; a hyperbolic tangent, called 'bend', at the end of one of them."""
    rng = np.random.default_rng(0)
    x = ops.parameter([1, 64], ov.Type.f32, name="x")

    def layer(value: Any) -> Any:
        return ops.matmul(value, ops.constant(rng.standard_normal((64, 64)).astype(np.float32) / 8), False, False)

    left = ops.tanh(layer(layer(x)), name="bend")
    right = ops.relu(layer(ops.relu(layer(x))))
    return describe(ov.Model([ops.result(ops.add(left, right))], [x], "branches"), Path("branches"))


def refusing(kind: str, *lines: str, least: int = 1) -> Callable[[Any], None]:
    """Refuse models with an op of a kind and at least ``least`` ops, as the plugin for GPUs does."""

    def compiling(model: Any) -> None:
        names = [op.get_friendly_name() for op in model.get_ordered_ops() if op.get_type_name() == kind]
        if names and len(model.get_ordered_ops()) >= least:
            raise RuntimeError(thrown(*(line.format(names[0]) for line in lines)))

    return compiling


NO_KERNEL = (
    "Check 'false' failed at src/plugins/intel_gpu/src/plugin/program_builder.cpp:163:",
    "[GPU] ProgramBuilder build failed!",
    "Exception from src/plugins/intel_gpu/src/graph/program_node.cpp:475:",
    "[GPU] Failed to select implementation for",
    "name:activation:{}",
    "type: activation",
    "original_type: Tanh",
)
NO_NAME = (
    "[GPU] ProgramBuilder build failed!",
    "Program build failed(0_part_0): 1:212:19: error: use of undeclared identifier",
)
NO_MEMORY = (
    "Check '!exceed_allocatable_mem_size' failed at src/plugins/intel_gpu/src/runtime/engine.cpp:319:",
    "[GPU] Exceeded max size of memory object allocation: requested 16000000000 bytes. Please try to reduce batch size.",
)
LOST = ("[GPU] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE",)


def optimized(devices: str = f"{CORE},GPU.0") -> Any:
    return placeit.optimize(branches(), devices, budget=4.0, cache=None, candidates=Candidates(placers=["heft"]), policy=STEADY)


def placeable(session: Session, device: str) -> dict[str, bool]:
    """Return whether each op can run on a device, according to the profile."""
    can = np.isfinite(session.costs.core[:, session.cluster.names.index(device)])
    return {name: bool(can[session.grouping.group_of[v]]) for v, name in enumerate(session.model.graph.names)}


def in_parts(kind: str, *lines: str) -> Callable[[Any], None]:
    """Refuse a segment that has an op of a kind, but not the whole model."""

    def compiling(model: Any) -> None:
        kinds = [op.get_type_name() for op in model.get_ordered_ops()]
        if kind in kinds and "Relu" not in kinds:
            raise RuntimeError(thrown(*lines))

    return compiling


@pytest.mark.parametrize(
    ("compiling", "said"),
    [
        (refusing("Tanh", *NO_KERNEL), "Failed to select implementation for name:activation:bend type: activation"),
        (in_parts("Tanh", *NO_NAME), "use of undeclared identifier. The segment has the"),
    ],
    ids=["named", "not named"],
)
def test_an_op_that_a_gpu_does_not_compile_is_placed_elsewhere_and_named(
    recorded: See, caplog: pytest.LogCaptureFixture, compiling: Callable[[Any], None], said: str
) -> None:
    recorded(GPU_0=replace(GPU, compiling=compiling))
    with Session(branches(), f"{CORE},GPU.0", cache=None, policy=STEADY) as session:
        session.profile(budget_s=2.0)
        can = placeable(session, "GPU.0")
    assert not can["bend"]
    assert any(can.values())  # the others still run there
    (warned,) = (record.message for record in caplog.records if "placed on" in record.message)
    assert warned.startswith("OpenVINO cannot compile a model for GPU.0: [GPU] ProgramBuilder build failed!")
    assert said in warned
    assert "bend'" in warned or ":bend" in warned
    assert warned.endswith(f"It is placed on {CORE} only.")


def test_a_model_with_an_op_that_a_gpu_does_not_compile_is_optimized(recorded: See) -> None:
    recorded(GPU_0=replace(GPU, compiling=refusing("Tanh", *NO_KERNEL)))
    with optimized() as found:
        assert found.chosen.placement.as_dict()["bend"] == CORE


def combined(*lines: str) -> Callable[[Any], None]:
    """Refuse segments with one of the branches, and nothing of the other one: profiling compiles none of them."""

    def compiling(model: Any) -> None:
        kinds = [op.get_type_name() for op in model.get_ordered_ops()]
        if "Tanh" in kinds and kinds.count("MatMul") == 2 and "Relu" not in kinds:
            raise RuntimeError(thrown(*(line.format("bend") for line in lines)))

    return compiling


def split(session: Session) -> Placement:
    """Place the branch with the hyperbolic tangent on the GPU, and all else on the core."""
    graph, group_of = session.model.graph, session.grouping.group_of
    branch = {int(group_of[graph.index["bend"]])}
    for _ in graph.names:
        branch |= {int(group_of[u]) for u, v in graph.edges.tolist() if group_of[v] in branch and graph.kinds[u] == "MatMul"}
    return session.placement(np.isin(np.arange(len(session.grouping.groups)), [*branch]).astype(np.int32))


@pytest.mark.parametrize("lines", [NO_KERNEL, NO_NAME], ids=["named", "not named"])
def test_a_segment_that_a_gpu_does_not_compile_is_placed_anew_and_the_search_goes_on(
    recorded: See, caplog: pytest.LogCaptureFixture, lines: tuple[str, ...]
) -> None:
    recorded(GPU_0=replace(GPU, compiling=combined(*lines)))
    with Session(branches(), f"{CORE},GPU.0", cache=None, policy=STEADY) as session:
        session.profile(budget_s=2.0)
        start = split(session)
        with pytest.raises(DeviceError, match=r"for GPU\.0: \[GPU\] ProgramBuilder build failed!.*bend'?"):
            session.run(start, runs=1)
        found = session.optimize(budget=4.0, candidates=Candidates(placers=["heft"], start=start))
        assert found.chosen.failed is None
        assert "start" in [one.name for one in found.candidates if one.failed is not None]
        group = session.grouping.members(int(session.grouping.group_of[session.model.graph.index["bend"]]))
        again = dict.fromkeys(group if lines is NO_KERNEL else start.op_names, CORE)
        (other,) = (one for one in found.candidates if one.placement.as_dict() == start.as_dict() | again)
        assert other.failed is None
    (warned,) = (record.message for record in caplog.records if "placed on" in record.message)
    assert "bend" in warned
    assert warned.endswith(f"It is placed on {CORE} only.")


def test_an_op_that_no_other_device_supports_is_an_error_that_names_it(recorded: See) -> None:
    recorded(GPU_0=replace(GPU, compiling=refusing("Tanh", *NO_KERNEL)))
    with pytest.raises(DeviceError, match=r"for GPU\.0: \[GPU\] ProgramBuilder build failed! .* name:activation:bend"):
        optimized("GPU.0")


def test_an_op_that_a_gpu_says_it_does_not_support_is_placed_elsewhere(recorded: See) -> None:
    recorded(GPU_0=replace(GPU, unsupported=frozenset({"Tanh"}), compiling=refusing("Tanh", *NO_KERNEL)))
    with Session(branches(), f"{CORE},GPU.0", cache=None, policy=STEADY) as session:
        session.profile(budget_s=2.0)
        can = placeable(session, "GPU.0")
    assert not can["bend"]
    assert any(can.values())


def test_of_ops_that_are_placed_together_only_the_unsupported_ones_are_kept_off_a_gpu(recorded: See) -> None:
    x = ops.parameter([1, 8], ov.Type.f32, name="x")
    chain = ops.sigmoid(ops.tanh(ops.relu(x, name="before"), name="bend"), name="after")
    model = describe(ov.Model([ops.result(chain)], [x], "chain"), Path("chain"))
    for plugin in (
        replace(GPU, unsupported=frozenset({"Tanh"})),
        replace(GPU, compiling=refusing("Tanh", *NO_KERNEL)),
    ):
        recorded(GPU_0=plugin)
        with Session(model, f"{CORE},GPU.0", constraints=Constraints(max_groups=1), cache=None, policy=STEADY) as session:
            session.profile(budget_s=2.0)
            can = placeable(session, "GPU.0")
        assert (can["before"], can["bend"], can["after"]) == (True, False, True)


def test_a_placement_that_has_no_room_on_a_gpu_is_left_out_and_the_search_goes_on(recorded: See) -> None:
    # parts of the model fit, and all of it does not
    recorded(GPU_0=replace(GPU, compiling=refusing("Tanh", *NO_MEMORY, least=len(branches().ov_model.get_ordered_ops()))))
    with optimized() as found:
        failed = {one.name: one for one in found.candidates if one.failed is not None}
        assert "Exceeded max size of memory object allocation" in str(failed["GPU.0"].failed)
        assert found.chosen.failed is None


def on_the_gpu(session: Session) -> Plan:
    groups = len(session.grouping.groups)
    return Segmenter(session.grouping, Costs.zero(groups, session.cluster)).plan(np.zeros(groups, np.int32))


def test_a_gpu_that_disappears_during_a_run_is_an_error_in_the_words_of_its_plugin(recorded: See) -> None:
    runs = itertools.count()

    def running() -> None:
        if next(runs) >= 2:
            raise RuntimeError(thrown(*LOST))

    recorded(GPU_0=replace(GPU, running=running))
    with Session(branches(), "GPU.0", cache=None, policy=STEADY) as session, session.executor(on_the_gpu(session)) as executor:
        for _ in range(2):
            executor.run(session.model.sample_inputs())
        with pytest.raises(ExecutionError, match=r"GPU\.0: \[GPU\] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE"):
            executor.run(session.model.sample_inputs())


def test_a_gpu_that_disappears_before_it_is_used_is_an_error_in_the_words_of_its_plugin(recorded: See) -> None:
    core = recorded(GPU_0=GPU, GPU_1=GPU)
    cluster = placeit.discover(f"{CORE},GPU.1")
    del core.plugins["GPU.1"]
    with pytest.raises(DeviceError, match=r"GPU\.1.*Couldn't find config for GPU with id 1"):
        placeit.optimize(branches(), cluster, budget=8.0, cache=None, policy=STEADY)


def test_memory_that_a_gpu_lacks_for_buffers_is_a_lack_of_room(recorded: See, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(GPU_0=GPU)

    def create_infer_request(_: object) -> Any:
        raise RuntimeError(thrown("[GPU] clEnqueueMapBuffer, error code: -4 CL_MEM_OBJECT_ALLOCATION_FAILURE"))

    monkeypatch.setattr("tests.recorded_plugins._Compiled.create_infer_request", create_infer_request)
    with (
        Session(branches(), "GPU.0", cache=None, policy=STEADY) as session,
        pytest.raises(NoRoomError, match=r"cannot make buffers for GPU\.0: \[GPU\] clEnqueueMapBuffer, error code: -4"),
    ):
        session.executor(on_the_gpu(session))
