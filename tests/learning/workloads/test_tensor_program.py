import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import placeit
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError, ModelError
from placeit.devices.host import allowed_cores
from placeit.learning.workloads.tensor_program import of_program, tensor_model
from placeit.learning.workloads.tensors import shard
from placeit.learning.workloads.tensors.expression import crop, elementwise, tensor
from placeit.measuring.check import OutputDifference
from placeit.planning.coarsen import Grouping, coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.drivers import drive
from placeit.runtime.runtime import Runtime

SMALL = {
    "chain-mm": {"size": 37},
    "ffnn": {"batch": 24, "features": 6, "hidden": 20},
    "llama-block": {"tokens": 12, "width": 16, "heads": 2, "hidden": 24},
    "llama-layer": {"tokens": 12, "width": 16, "heads": 2, "hidden": 24, "vocabulary": 20},
}


def on_cpu(model, grouping):
    """Two devices that share the first core: where is not what these tests are about."""
    core = min(allowed_cores())
    devices = tuple(Device(name, kind="torch", address=Address("CPU", (core,))) for name in "ab")
    return Runtime(model, grouping, Cluster(devices))


def outputs_of(model, placement, *, merge, grouping):
    with on_cpu(model, grouping) as runtime:
        plan = Segmenter(grouping, Costs.zero(len(grouping.groups), runtime.cluster)).plan(placement, merge=merge)
        executor = runtime.executor(plan)
        executor.time()
        return executor.run({})


@pytest.mark.parametrize("name", SMALL)
@given(data=st.data())
@settings(max_examples=5)
def test_any_placement_computes_what_the_uncut_program_computes(name, data):
    model = tensor_model(name, shards=data.draw(st.integers(1, 5)), seed=data.draw(st.integers(0, 9)), **SMALL[name])
    grouping = coarsen(model.graph, max_groups=data.draw(st.sampled_from([8, 96])))
    placement = data.draw(st.lists(st.integers(0, 1), min_size=len(grouping.groups), max_size=len(grouping.groups)))
    outputs = outputs_of(model, placement, merge=data.draw(st.booleans()), grouping=grouping)
    assert OutputDifference.between(outputs, model.reference(None, "f32")({})).max_rel < 1e-4


def test_outputs_are_blocks_that_join_to_the_whole():
    model = tensor_model("chain-mm", shards=4, size=10)
    assert len(model.outputs) == len(model.program.outputs["sum"].blocks) > 1
    grouping = Grouping.singletons(model.graph)
    outputs = outputs_of(model, [v % 2 for v in range(len(model.graph))], merge=False, grouping=grouping)
    (joined,) = model.join(outputs).values()
    (whole,) = model.whole.run(model.values).values()
    torch.testing.assert_close(joined, whole, rtol=1e-4, atol=1e-4)
    for name, block in model.cut(model.join(outputs)).items():
        np.testing.assert_array_equal(block, outputs[name])


def test_ops_of_the_task_graph_are_those_of_the_program_and_then_the_outputs():
    model = tensor_model("ffnn", shards=3, **SMALL["ffnn"])
    ops = len(model.program.ops)
    assert model.graph.names[:ops] == model.program.graph.names
    assert set(model.graph.kinds[ops:]) == {"Result"}
    assert model.inputs == ()
    assert [spec.op for spec in model.outputs] == list(model.graph.names[ops:])


def test_statistics_count_blocks_of_inputs_as_constants():
    statistics = tensor_model("chain-mm", shards=1, size=8).statistics()
    assert statistics["ops"] == 5  # four ops and an output
    assert statistics["layers"] == 10
    assert statistics["layer_edges"] == statistics["edges"] + 5
    assert statistics["parameters"] == 5 * 64
    assert statistics["parameter_bytes"] == 5 * 64 * 4
    assert statistics["flops"] == 3 * 2 * 8**3 + 64


def test_an_op_that_fails_in_a_run_is_named_with_its_device():
    model = tensor_model("chain-mm", shards=2, size=8)
    broken = model.program.ops[3]

    def fail(*_blocks):
        return torch.empty(1 << 60)

    ops = tuple(replace(op, run=fail) if op is broken else op for op in model.program.ops)
    model = replace(model, program=replace(model.program, ops=ops))
    groups = Grouping.singletons(model.graph)
    with pytest.raises(ExecutionError, match=rf"failed on a in op '{re.escape(broken.name)}': .*memory"):
        outputs_of(model, [0] * len(groups.groups), merge=True, grouping=groups)


def test_segments_share_the_memory_of_the_inputs():
    model = tensor_model("chain-mm", shards=2, size=8)
    everything = range(len(model.graph))
    first, second = (model.segment("torch", everything, (), ()) for _ in range(2))
    pointers = [sorted(buffer.data_ptr() for buffer in segment.buffers()) for segment in (first, second)]
    assert pointers[0] == pointers[1]


def test_a_session_profiles_places_and_checks_a_tensor_program():
    core = min(allowed_cores())
    model = tensor_model("ffnn", shards=2, **SMALL["ffnn"])
    with placeit.Session(model, f"CPU@{core}", cache=None) as session:
        session.profile(budget_s=0.5)
        assert session.cluster.devices[0].kind == "torch"
        assert np.isfinite(session.costs.core).all()
        report = session.run(session.placement([0] * len(session.grouping.groups)), runs=2)
    assert report.output_error.max_rel < 1e-4
    assert set(report.outputs) == {spec.name for spec in model.outputs}


def test_a_chain_of_so_many_ops_is_there_to_measure_what_segments_cost():
    chain = tensor_model("chain-mm", size=4).chain(7, 3)
    assert chain.graph.kinds.count("input_elemwise") == 3
    grouping = Grouping.singletons(chain.graph)
    outputs = outputs_of(chain, [0, 1, 0, 0], merge=False, grouping=grouping)
    np.testing.assert_array_equal(outputs["relu2"], np.maximum(chain.values["x"].numpy(), 0))


def test_kernels_are_those_of_this_pytorch():
    model = tensor_model("chain-mm", shards=2, size=4)
    assert model.with_kernel("CPU") == set(model.graph.names)
    if torch.version.cuda is None:
        assert model.with_kernel("CUDA") == {spec.op for spec in model.outputs}


def test_a_device_that_only_openvino_drives_is_refused():
    with pytest.raises(DeviceError, match=r"NPU.*chain-mm is a PyTorch model"):
        drive(Cluster((Device("NPU", address=Address("NPU")),)), tensor_model("chain-mm", size=4))


def test_an_output_that_no_op_makes_is_refused_by_name():
    x = tensor("x", 4, 4)
    program = shard([elementwise("y", "ij->ij", torch.relu, x), x], 1)
    with pytest.raises(ModelError, match="output 'x' is an input"):
        of_program(program, program, name="odd")


def test_an_output_may_be_read_by_other_ops_as_well():
    y = elementwise("y", "ij->ij", torch.relu, tensor("x", 5, 4))
    last = elementwise("z", "ij->ij", torch.neg, crop("part", y, (1, 4), (0, 4)))
    model = of_program(shard([y, last], 2), shard([y, last], 1), name="two")
    grouping = Grouping.singletons(model.graph)
    outputs = outputs_of(model, [v % 2 for v in range(len(model.graph))], merge=True, grouping=grouping)
    assert OutputDifference.between(outputs, model.reference(None, "f32")({})).max_abs == 0
