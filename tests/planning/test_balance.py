"""Limits on the growth of groups: shares of a model's work and weights, memory, and separate state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.decoder import TINY, write_decoder
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import InfeasibleError, PlacementError, UsageError
from placeit.core.graph import OpGraph
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.optimizer.options import Candidates
from placeit.planning.coarsen import LARGEST, Grouping, coarsen
from placeit.planning.pins import divided
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.workbench.options import Constraints, Inputs
from tests.steady import optimize

ops = ov.opset13
LINKS = {pair: Link(1e9, 1e-5, "emulated") for pair in (("a", "b"), ("b", "a"))}
BOARDS = Cluster(tuple(Device(name, address=Address("CPU", (allowed_cores()[0],))) for name in ("a", "b")), LINKS)


def described(count: int) -> Cluster:
    names = [f"d{i}" for i in range(count)]
    links = {(a, b): Link(1e12, 1e-9, "described") for a in names for b in names if a != b}
    return Cluster(tuple(Device(name, kind="described", flops_per_s=1e9, bytes_per_s=1e12) for name in names), links)


def chain(channels: int = 32, layers: int = 8) -> OpenVinoModel:
    """Convolutions with bias and activation, one after the other, and a classifier, as in VGG."""
    rng = np.random.default_rng(0)
    image = ops.parameter([1, channels, 16, 16], ov.Type.f32, name="image")
    value = image
    for layer in range(layers):
        weights = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) / (3 * channels**0.5)
        value = ops.convolution(value, weights, [1, 1], [1, 1], [1, 1], [1, 1], name=f"conv{layer}")
        value = ops.add(value, np.full((1, channels, 1, 1), 0.1, np.float32), name=f"bias{layer}")
        value = ops.relu(value, name=f"relu{layer}")
    mean = ops.reduce_mean(value, np.array([2, 3]), keep_dims=False, name="mean")
    scores = ops.matmul(mean, rng.standard_normal((channels, 10)).astype(np.float32), False, False, name="scores")
    return describe(ov.Model([ops.result(scores, name="y")], [image], "chain"), Path("chain"))


def stateful(layers: int) -> OpenVinoModel:
    """Layers in a row that each keep a state."""
    rng = np.random.default_rng(0)
    value = x = ops.parameter([1, 64], ov.Type.f32, name="x")
    sinks = []
    for layer in range(layers):
        info = ov.op.util.VariableInfo()
        info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1, 64]), ov.Type.f32, f"state{layer}"
        variable = ov.op.util.Variable(info)
        read = ops.read_value(ops.constant(np.ones((1, 64), np.float32)), variable, name=f"read{layer}")
        update = ops.add(read, value, name=f"update{layer}")
        sinks.append(ops.assign(update, variable))
        sinks[-1].set_friendly_name(f"assign{layer}")
        weights = rng.standard_normal((64, 64)).astype(np.float32) / 8
        value = ops.tanh(ops.matmul(update, weights, False, False, name=f"product{layer}"), name=f"tanh{layer}")
    return describe(ov.Model([ops.result(value, name="y")], sinks, [x], "stateful"), Path("stateful"))


def groups_of(grouping: Grouping) -> dict[str, int]:
    return dict(zip(grouping.graph.names, grouping.group_of.tolist(), strict=True))


def test_a_chain_is_one_group_by_the_papers_rule_and_several_by_default() -> None:
    model = chain()
    assert len(coarsen(model.graph).groups) == 1
    with Session(model, described(2), cache=None) as session:
        group = groups_of(session.grouping)
    assert len({group[f"conv{layer}"] for layer in range(8)}) == 8
    for layer in range(8):  # what is fused with a convolution stays with it
        assert group[f"conv{layer}"] == group[f"bias{layer}"] == group[f"relu{layer}"]


def row_of(flops: list[int], weights: list[int]) -> OpGraph:
    ops = len(flops)
    return OpGraph(
        names=tuple(f"op{v}" for v in range(ops)),
        kinds=("Op",) * ops,
        flops=np.array(flops, np.float64),
        param_bytes=np.array(weights, np.float64),
        tensor_op=np.arange(ops, dtype=np.int32),
        tensor_port=np.zeros(ops, np.int32),
        tensor_bytes=np.zeros(ops),
        tensor_shapes=((1,),) * ops,
        tensor_dtypes=("float32",) * ops,
        edges=np.array([(v, v + 1) for v in range(ops - 1)], np.int32).reshape(-1, 2),
        edge_tensor=np.arange(ops - 1, dtype=np.int32),
    ).verify()


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=60), st.integers(1, 3000))
def test_no_group_of_a_chain_takes_more_than_its_share(sizes: list[tuple[int, int]], memory: int) -> None:
    flops, weights = map(list, zip(*sizes, strict=True))
    graph = row_of(flops, weights)
    grouping = coarsen(graph, largest=LARGEST, memory=(memory, 2.0 * memory))
    limit = LARGEST * min(sum(weights), memory)
    for group, (work, size) in enumerate(
        zip(grouping.groups.flops.tolist(), grouping.groups.param_bytes.tolist(), strict=True)
    ):
        members = [graph.index[name] for name in grouping.members(group)]
        heaviest, largest = max(flops[v] for v in members), max(weights[v] for v in members)
        assert work <= max(LARGEST * sum(flops), heaviest * 4 / 3) * (1 + 1e-9)
        assert size <= max(limit, largest * 17 / 16) * (1 + 1e-9)
        for room in (memory, 2 * memory):
            assert size <= room or largest > room


@pytest.mark.parametrize("largest", [0.0, -1.0, float("nan")])
def test_a_share_that_is_not_positive_is_refused(largest: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        coarsen(chain().graph, largest=largest)


def runs_right(model: OpenVinoModel, placement: Placement) -> None:
    with Session(model, BOARDS, cache=None) as session:
        session.divide(placement, by_segments=True)
        assert session.run(placement, runs=1).failed is None


def test_a_chain_is_split_where_memory_forces_it(cache: Cache) -> None:
    model = chain()
    most = float(model.graph.param_bytes.sum()) * 0.6
    found = optimize(
        model,
        BOARDS,
        candidates=Candidates(placers=("heft",)),
        budget=2,
        cache=cache,
        constraints=Constraints(memory={"a": most, "b": most}),
    )
    used = dict.fromkeys(BOARDS.names, 0.0)
    for op, device in found.placement.as_dict().items():
        used[device] += float(model.graph.param_bytes[model.graph.index[op]])
    assert all(0 < size <= most for size in used.values())
    runs_right(model, found.placement)


def test_part_of_a_chain_can_be_pinned(cache: Cache) -> None:
    found = optimize(
        chain(),
        BOARDS,
        candidates=Candidates(placers=("heft",)),
        budget=2,
        cache=cache,
        constraints=Constraints(pins={"conv5": "b", "conv2": "a"}),
    )
    placed = found.placement.as_dict()
    assert (placed["conv5"], placed["conv2"]) == ("b", "a")
    runs_right(chain(), found.placement)


def test_a_chain_becomes_a_pipeline_for_throughput(cache: Cache) -> None:
    found = optimize(
        chain(), described(2), candidates=Candidates(placers=("metis",)), budget=3, cache=cache, objective="throughput"
    )
    pipelines = [one for one in found.candidates if len(set(one.placement.as_dict().values())) == 2 and not one.replicas]
    best = min(one.simulated_s for one in found.candidates if one.placer == "single")
    assert any(one.simulated_s < 0.6 * best for one in pipelines)


@pytest.mark.parametrize(
    ("memory", "pins", "says"),
    [
        ({"d0": 30e3, "d1": 30e3}, {}, r"weights of 'conv\d' alone, 36.9 kB, fit on no device that can run it \(d0, d1\)"),
        ({"d0": 30e3, "d1": 1e6}, {"conv3": "d0"}, r"'conv3' alone, 36.9 kB, fit on no device that can run it \(d0\)"),
        (
            {"d0": 40e3, "d1": 1e6},
            {"conv[34]": "d0"},
            r"the 2 ops that can only be on d0 take 73.7 kB \(the largest is '",
        ),
        ({"d0": 150e3, "d1": 140e3}, {}, r"take 297 kB in all, and the devices may hold d0 150 kB, d1 140 kB\. Add a device"),
    ],
)
def test_what_does_not_fit_is_named(memory: dict[str, float], pins: dict[str, str], says: str, cache: Cache) -> None:
    with pytest.raises(InfeasibleError, match=says):
        optimize(
            chain(),
            described(2),
            candidates=Candidates(placers=("heft",)),
            budget=2,
            cache=cache,
            constraints=Constraints(memory=memory, pins=pins),
        )


def test_a_decoder_whose_table_is_read_at_both_ends_is_placed_within_caps_of_little_more_than_half(
    cache: Cache, tmp_path: Path
) -> None:
    path = write_decoder(TINY, tmp_path / "decoder.xml")
    weights, table = path.with_suffix(".bin").stat().st_size, 4.0 * TINY.vocabulary * TINY.width
    caps, inputs = dict.fromkeys(("d0", "d1"), (weights + table) / 2 * 1.2), Inputs(context=64)
    constraints, candidates = Constraints(memory=caps), Candidates(placers=("heft",))
    found = optimize(path, described(2), candidates=candidates, budget=2, cache=cache, inputs=inputs, constraints=constraints)
    assert set(found.placement.as_dict().values()) == {"d0", "d1"}


def test_a_group_that_is_too_large_names_its_largest_op(cache: Cache) -> None:
    model, memory = chain(), {"d0": 200e3, "d1": 200e3}
    with pytest.raises(InfeasibleError, match=r"placed together with 'conv0' take 297 kB.*or allow more groups"):
        optimize(
            model,
            described(2),
            candidates=Candidates(placers=("heft",)),
            budget=2,
            cache=cache,
            constraints=Constraints(memory=memory, max_groups=1),
        )


def test_layers_with_a_state_each_are_groups_of_their_own(cache: Cache) -> None:
    model = stateful(3)
    names = model.graph.names
    devices = np.array([int(name.endswith("1")) for name in names], np.int32)
    with Session(model, BOARDS, cache=cache) as session:
        group = groups_of(session.grouping)
        session.divide(Placement(names, devices, BOARDS.names))
        session.profile(budget_s=1.0)
        report = session.run(Placement(names, devices, BOARDS.names), runs=3)
    assert len({group[f"update{layer}"] for layer in range(3)}) == 3
    for layer in range(3):
        assert group[f"read{layer}"] == group[f"update{layer}"] == group[f"assign{layer}"]
    assert report.failed is None


def test_one_group_of_several_states_is_divided_between_them_and_not_within() -> None:
    model = stateful(2)
    graph = model.graph
    one = Grouping.of(graph, [0] * len(graph))
    devices = np.array([int(name.endswith("1")) for name in graph.names], np.int32)
    group = groups_of(divided(one, devices, model.together))
    assert group["read0"] == group["assign0"] != group["read1"] == group["assign1"]
    devices[graph.index["assign0"]] = 1
    with pytest.raises(PlacementError, match=r"Ops 'read0' and 'assign0' run on one device, because they share state"):
        divided(one, devices, model.together)
    devices[graph.index["assign0"]] = 0
    devices[graph.index["update0"]] = 1
    with pytest.raises(PlacementError, match=r"'read0' and 'update0', which are among them or lie between them"):
        divided(one, devices, model.together)
