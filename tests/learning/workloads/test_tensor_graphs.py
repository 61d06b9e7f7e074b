from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import placeit
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ClusterError, UsageError
from placeit.learning.workloads.tensor_graphs import (
    PAPER_SIZES,
    TENSOR_GRAPHS,
    chain_mm,
    ffnn,
    llama_block,
    llama_layer,
    tensor_graph,
)
from placeit.learning.workloads.tensors import BlockProgram, ProgramSegment, shard
from placeit.learning.workloads.tensors.expression import (
    causal,
    crop,
    einsum,
    elementwise,
    reduction,
    tensor,
    to_complex,
    to_real,
)
from placeit.learning.workloads.tensors.nodes import TensorNode

SMALL: dict[str, dict[str, int]] = {
    "chain-mm": {"size": 30},
    "ffnn": {"batch": 21, "features": 6, "hidden": 40},
    "llama-block": {"tokens": 19, "width": 24, "heads": 3, "hidden": 34},
    "llama-layer": {"tokens": 19, "width": 24, "heads": 3, "hidden": 34, "vocabulary": 50},
}
PUBLISHED_CHAIN_MM = {
    "AB": {"i": 4, "j": 2, "k": 2},
    "DE": {"i": 2, "j": 2, "k": 4},
    "CDE": {"i": 4, "j": 2, "k": 2},
    "sum": {"i": 4, "j": 2},
}


def expected(name: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a program computes, written in plain PyTorch and computed in double precision."""
    v = {key: value.to(torch.complex128 if value.is_complex() else torch.float64) for key, value in inputs.items()}
    if name == "chain-mm":
        return {"sum": v["A"] @ v["B"] + v["C"] @ (v["D"] @ v["E"])}
    if name == "ffnn":
        hidden = F.relu(F.linear(v["X"], v["W1"].T, v["b1"]))
        return {"Y.div": F.linear(hidden, v["W2"].T, v["b2"]).softmax(-1)}

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps=1e-5)

    x = v["X"]
    tokens, width = x.shape
    heads = v["Wv"].shape[1]
    y = norm(x, v["norm1.weight"])

    def rotated(weight: Tensor) -> Tensor:
        pairs = (y @ weight.reshape(width, width)).reshape(tokens, heads, -1, 2)
        return torch.view_as_real(torch.view_as_complex(pairs) * v["rotary"][:, None]).reshape(tokens, heads, -1)

    values = (y @ v["Wv"].reshape(width, width)).reshape(tokens, heads, -1)
    query, key, value = (part.transpose(0, 1) for part in (rotated(v["Wq"]), rotated(v["Wk"]), values))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    x = x + attended.transpose(0, 1).reshape(tokens, width) @ v["Wo"].reshape(width, width)
    y = norm(x, v["norm2.weight"])
    x = x + (F.silu(y @ v["Wgate"]) * (y @ v["Wup"])) @ v["Wdown"]
    if name == "llama-block":
        return {"residual2": x}
    return {"logits": norm(x[-1:], v["norm3.weight"]) @ v["Wvocabulary"]}


def check(name: str, program: BlockProgram, whole: BlockProgram) -> None:
    inputs = program.random_inputs(1)
    results = program.run(inputs)
    references = expected(name, inputs)
    uncut = whole.run(inputs)
    assert results.keys() == references.keys() == uncut.keys()
    for key, reference in references.items():
        assert results[key].dtype == torch.float32
        torch.testing.assert_close(results[key], reference.float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(results[key], uncut[key], rtol=1e-4, atol=1e-5)


def small(name: str, **options: Any) -> BlockProgram:
    return tensor_graph(name, **SMALL[name], **options)


# --- results


@pytest.mark.parametrize("shards", range(1, 9))
@pytest.mark.parametrize("name", TENSOR_GRAPHS)
def test_a_cut_program_computes_what_the_uncut_one_and_plain_pytorch_compute(name: str, shards: int) -> None:
    check(name, small(name, shards=shards), small(name, shards=1))


sizes = st.integers(1, 9)


@given(size=sizes, shards=st.integers(2, 8))
def test_a_chain_of_products_is_right_at_any_size(size: int, shards: int) -> None:
    check("chain-mm", chain_mm(size=size, shards=shards), chain_mm(size=size, shards=1))


@given(batch=sizes, features=sizes, hidden=sizes, shards=st.integers(2, 8))
def test_a_feed_forward_network_is_right_at_any_size(batch: int, features: int, hidden: int, shards: int) -> None:
    asked = {"batch": batch, "features": features, "hidden": hidden}
    check("ffnn", ffnn(**asked, shards=shards), ffnn(**asked, shards=1))


@given(
    tokens=sizes,
    heads=st.integers(1, 3),
    pairs=st.integers(1, 3),
    hidden=sizes,
    vocabulary=sizes,
    layer=st.booleans(),
    shards=st.integers(2, 8),
)
@settings(max_examples=15)
def test_a_transformer_is_right_at_any_size(
    tokens: int, heads: int, pairs: int, hidden: int, vocabulary: int, layer: bool, shards: int
) -> None:
    asked = {"tokens": tokens, "heads": heads, "width": 2 * heads * pairs, "hidden": hidden}
    if layer:
        asked["vocabulary"] = vocabulary
        check("llama-layer", llama_layer(**asked, shards=shards), llama_layer(**asked, shards=1))
    else:
        check("llama-block", llama_block(**asked, shards=shards), llama_block(**asked, shards=1))


@given(data=st.data())
@settings(max_examples=15)
def test_any_partition_of_any_op_gives_the_same_result(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["ffnn", "llama-block"]))
    extents = {
        "ffnn": {"XW1": "bhf", "bias1": "bh", "relu": "bh", "HW2": "byh", "bias2": "by", "Y.max": "by", "Y.sum": "by"},
        "llama-block": {"Q": "shcrd", "K": "shcrd", "scores": "hstcr", "masked": "hst", "softmax.max": "hst", "down": "sdf"},
    }[name]
    chosen = data.draw(st.lists(st.sampled_from(sorted(extents)), unique=True, max_size=3))
    partition = {
        op: {index: data.draw(st.integers(1, 2 if index in "rc" else 3), label=index) for index in extents[op]} for op in chosen
    }
    check(name, small(name, shards=3, partition=partition), small(name, shards=1))


def test_inputs_depend_on_the_seed_and_not_on_the_shards() -> None:
    first, second = (small("llama-block", shards=shards).random_inputs(7) for shards in (1, 6))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["X"], small("llama-block").random_inputs(8)["X"])
    assert torch.allclose(first["rotary"].abs(), torch.ones(()))


# --- what each op promises


@pytest.mark.parametrize("name", TENSOR_GRAPHS)
def test_every_op_makes_a_new_contiguous_tensor_as_declared_and_leaves_its_inputs_alone(name: str) -> None:
    program = small(name, shards=6)
    values = program.split(program.random_inputs())
    for op in program.ops:
        inputs = [values[tensor] for tensor in op.inputs]
        before = [value.clone() for value in inputs]
        made = values[op.output] = op.run(*inputs)
        declared = program.tensors[op.output]
        assert (tuple(made.shape), made.dtype) == (declared.shape, declared.dtype), op.name
        assert made.is_contiguous(), op.name
        assert made.untyped_storage().data_ptr() not in {value.untyped_storage().data_ptr() for value in inputs}, op.name
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True)), op.name
        assert op.bytes > 0, op.name


@pytest.mark.parametrize("name", TENSOR_GRAPHS)
def test_every_op_runs_where_its_inputs_are(name: str) -> None:
    program = small(name, shards=6)
    values = {tensor: value.to("meta") for tensor, value in program.split(program.random_inputs()).items()}
    for op in program.ops:
        values[op.output] = op.run(*(values[tensor] for tensor in op.inputs))
        assert values[op.output].is_meta, op.name


@pytest.mark.parametrize("shards", [1, 4, 7])
@pytest.mark.parametrize("name", TENSOR_GRAPHS)
def test_the_task_graph_is_that_of_the_program(name: str, shards: int) -> None:
    program = small(name, shards=shards)
    graph = program.graph
    assert graph.names == tuple(op.name for op in program.ops)
    names = {t.name for t in program.tensors}
    assert len(names) == len(program.tensors)
    maker = {op.output: op.name for op in program.ops}
    for v, op in enumerate(program.ops):
        edges = graph.predecessors.row(v)
        assert {graph.names[graph.edges[e, 0]] for e in edges} == {maker[t] for t in op.inputs if t in maker}
        assert len(edges) == len({t for t in op.inputs if t in maker})
        assert graph.param_bytes[v] == sum(program.tensors[t].nbytes for t in set(op.inputs) if t not in maker)
        assert graph.tensor_bytes[v] == program.tensors[op.output].nbytes
    assert set(graph.tensor_dtypes) <= {"float32", "complex64"}


def test_cutting_leaves_the_arithmetic_and_adds_that_of_partial_results() -> None:
    whole, cut = (chain_mm(size=24, shards=shards, partition=PUBLISHED_CHAIN_MM if shards > 1 else None) for shards in (1, 16))
    assert whole.graph.flops.tolist() == [2 * 24**3] * 3 + [24**2]
    flops = dict.fromkeys(cut.graph.kinds, 0.0)
    for kind, count in zip(cut.graph.kinds, cut.graph.flops, strict=True):
        flops[kind] += count
    assert flops == {"matmul": 6 * 24**3, "formation": (1 + 3 + 1) * 24**2, "straight_elemwise": 24**2}


# --- segments


@given(data=st.data())
@settings(max_examples=12)
def test_a_program_in_segments_computes_what_it_does_in_one(data: st.DataObject) -> None:
    program = small(data.draw(st.sampled_from(sorted(TENSOR_GRAPHS))), shards=4)
    count = len(program.ops)
    starts = sorted(data.draw(st.sets(st.integers(1, count - 1), max_size=6)))
    inputs = program.random_inputs()
    blocks = program.split(inputs)
    values: dict[int, Tensor] = {}
    wanted = {block.tensor for whole in program.outputs.values() for block in whole.blocks}
    for first, last in zip([0, *starts], [*starts, count], strict=True):
        ops = program.ops[first:last]
        made = {op.output for op in ops}
        enter = sorted({t for op in ops for t in op.inputs} - made - blocks.keys())
        leave = sorted(made & (wanted | {t for op in program.ops[last:] for t in op.inputs}))
        module = ProgramSegment(ops, enter, leave, blocks)
        assert sum(buffer.nbytes for buffer in module.buffers()) <= program.graph.param_bytes[first:last].sum()
        values |= dict(zip(leave, module(*(values[t] for t in enter)), strict=True))
    results = program.join(values)
    assert all(torch.equal(results[key], value) for key, value in program.run(inputs).items())


def test_a_segment_moves_with_the_blocks_that_it_reads() -> None:
    program = ffnn(**SMALL["ffnn"], shards=3)
    last = [op.output for op in program.ops if op.name.startswith("Y.div")]
    module = ProgramSegment(program.ops, (), last, program.split(program.random_inputs()))
    assert all(result.is_meta for result in module.to("meta")())


def test_a_segment_that_lacks_a_tensor_is_an_error_that_names_the_op() -> None:
    program = chain_mm(size=4)
    with pytest.raises(UsageError, match="'sum"):
        ProgramSegment(program.ops[-1:], (), (program.ops[-1].output,), {})


def test_an_op_that_fails_in_a_segment_is_named_in_a_note() -> None:
    program = chain_mm(size=4)
    given = program.split(program.random_inputs())
    module = ProgramSegment(program.ops, (), (), given | dict.fromkeys(given, torch.ones(2, 3)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:
        module()
    assert raised.value.__notes__ == [f"op: {program.ops[0].name}"]


# --- meta-ops


@pytest.mark.parametrize("shards", range(1, 9))
@pytest.mark.parametrize("name", TENSOR_GRAPHS)
def test_meta_ops_are_what_the_enumerative_optimizer_needs(name: str, shards: int) -> None:
    program = small(name, shards=shards)
    graph = program.graph
    parts = [part for meta in program.meta_ops for part in (meta.shard_ops, meta.reduce_ops)]
    assert sorted(op for part in parts for op in part) == sorted(graph.names), "every op is in one of them"
    position = {op: number for number, part in enumerate(parts) for op in part}
    for u, v in graph.edges:
        assert position[graph.names[u]] < position[graph.names[v]], "in topological order, and no set depends on itself"
    kinds = dict(zip(graph.names, graph.kinds, strict=True))
    for meta in program.meta_ops:
        assert len(meta.shard_ops) <= shards
        assert len(meta.reduce_ops) <= shards
        assert meta.shard_ops or meta.reduce_ops
        assert {kinds[op] for op in meta.reduce_ops} <= ({"formation"} if meta.shard_ops else {"select"})
        assert not {kinds[op] for op in meta.shard_ops} & {"formation", "select"}
    products = [meta for meta in program.meta_ops if kinds[(meta.shard_ops or meta.reduce_ops)[0]] == "matmul"]
    assert [len(meta.shard_ops) for meta in products] == [shards] * len(products)
    assert len(products) == {"chain-mm": 3, "ffnn": 2, "llama-block": 9, "llama-layer": 10}[name]


def test_partial_products_are_the_shard_ops_and_their_sums_the_reduce_ops() -> None:
    program = chain_mm(size=8, partition={"AB": {"i": 2, "j": 2, "k": 2}})
    (meta,) = (meta for meta in program.meta_ops if meta.name == "AB")
    assert len(meta.shard_ops) == 8
    assert meta.shard_ops[:3] == ("AB[i0,j0,k0]", "AB[i0,j0,k1]", "AB[i0,j1,k0]")
    assert meta.reduce_ops == tuple(f"AB[{i},{j}] formation" for i in range(2) for j in range(2))
    by_name = {op.name: op for op in program.ops}
    made = {op.output: op.name for op in program.ops}
    assert [made[t] for t in by_name["AB[0,1] formation"].inputs] == ["AB[i0,j1,k0]", "AB[i0,j1,k1]"]


# --- sizes


def test_the_published_chain_of_products_has_as_many_ops_edges_and_inputs() -> None:
    program = tensor_graph("chain-mm", paper_sizes=True, shards=16, partition=PUBLISHED_CHAIN_MM)
    assert (len(program.graph), len(program.graph.edges)) == (76, 80)
    assert len(program.ops) + sum(len(whole.blocks) for whole in program.inputs.values()) == 112, "as Appendix C.1 counts"


def test_the_published_feed_forward_network_has_as_many_ops_and_edges() -> None:
    program = tensor_graph("ffnn", paper_sizes=True, shards=16)
    assert (len(program.graph), len(program.graph.edges)) == (180, 208)


@pytest.mark.parametrize(("name", "ops", "edges"), [("llama-block", 166, 216), ("llama-layer", 193, 253)])
def test_transformers_of_the_papers_size_have_the_documented_numbers_of_ops(name: str, ops: int, edges: int) -> None:
    program = tensor_graph(name, paper_sizes=True, shards=4)
    assert (len(program.graph), len(program.graph.edges)) == (ops, edges)
    points = 4096 * 4096
    products = [op.flops for op in program.ops if op.kind == "matmul"]
    assert sum(products) >= 2 * points * (4 * 4096 + 2 * 4096 + 3 * 11008)


@pytest.mark.parametrize(
    ("file", "program"),
    [
        ("chain_mm", lambda: tensor_graph("chain-mm", paper_sizes=True, shards=16, partition=PUBLISHED_CHAIN_MM)),
        ("ffnn", lambda: tensor_graph("ffnn", paper_sizes=True, shards=16)),
        ("llama_block", lambda: tensor_graph("llama-block", paper_sizes=True, shards=4)),
        ("llama_layer", lambda: tensor_graph("llama-layer", paper_sizes=True, shards=4)),
    ],
)
def test_products_are_those_of_the_published_cost_graphs(file: str, program: Any) -> None:
    folder = os.environ.get("PLACEIT_DATA")
    if not folder:
        pytest.skip("PLACEIT_DATA does not name the folder that holds doppler_*.json")
    published = json.loads((Path(folder) / f"doppler_{file}.json").read_text())
    built = program()
    # published are multiplications in units of 1e10, of the uncut op for each of its shards
    products = [meta for meta in built.meta_ops if meta.shard_ops and meta.shard_ops[0] in _products(built)]
    flops = dict(zip(built.graph.names, built.graph.flops, strict=True))
    ours = sorted(round(sum(flops[op] for op in m.shard_ops) / 2e10, 6) for m in products for _ in m.shard_ops)
    theirs = sorted(round(cost, 6) for cost in published["compute"])[-len(ours) :]
    assert ours == pytest.approx(theirs)
    assert published["comm"] == pytest.approx([4 * cost for cost in published["compute"]])
    if file in ("chain_mm", "ffnn"):
        assert (len(built.graph), len(built.graph.edges)) == (len(published["compute"]), len(published["edges"]))


def _products(program: BlockProgram) -> set[str]:
    # the product of one token with the vocabulary is cheaper than many an element-wise op
    return {op.name for op in program.ops if op.kind == "matmul" and not op.name.startswith("logits")}


def test_default_sizes_are_for_two_cores_and_the_papers_are_larger() -> None:
    assert TENSOR_GRAPHS.keys() == PAPER_SIZES.keys() == SMALL.keys()
    for name in TENSOR_GRAPHS:
        flops = tensor_graph(name).graph.flops.sum()
        assert 1e9 < flops < 1e11
        assert tensor_graph(name, paper_sizes=True).graph.flops.sum() > 10 * flops
        assert sum(tensor.nbytes for tensor in tensor_graph(name).tensors) < 2e9


# --- placing


def devices(count: int) -> Cluster:
    machines = tuple(Device(f"d{n}", "described", flops_per_s=1e12, bytes_per_s=1e11, op_overhead_s=1e-6) for n in range(count))
    names = [machine.name for machine in machines]
    return Cluster(machines, {(a, b): Link(1e10, 1e-6, "described") for a in names for b in names if a != b})


@pytest.mark.parametrize("name", TENSOR_GRAPHS)
def test_a_program_can_be_placed_on_described_devices(name: str) -> None:
    program = tensor_graph(name, shards=4)
    problem = program.problem(devices(4))
    assert problem.op_names == program.graph.names
    assert problem.graph_hash == program.graph.hash
    assert problem.kinds == program.graph.kinds
    assert problem.output_shapes == program.graph.tensor_shapes
    placement = placeit.place(problem, "heft")
    makespan = placeit.simulate(problem, np.array([placement.devices, np.zeros(len(problem), np.int32)]))
    assert makespan[0] < makespan[1] / 1.5
    with pytest.raises(ClusterError, match="'CPU@0'"):
        program.problem(Cluster((Device("CPU@0"),)))


def test_two_readers_of_a_block_on_one_device_cost_one_transfer() -> None:
    x = tensor("x", 8, 8)
    square = elementwise("square", "ij->ij", torch.square, x)
    program = shard([elementwise(name, "ij->ij", torch.neg, square) for name in ("left", "right")], 1)
    problem = program.problem(devices(2))
    assert problem.edge_tensor.tolist() == [0, 0]


# --- the front end


def run(*outputs: TensorNode, shards: int = 5, **inputs: Tensor) -> dict[str, Tensor]:
    return shard(outputs, shards).run(inputs)


def test_all_reductions_can_be_cut() -> None:
    x = tensor("x", 6, 7)
    value = torch.randn(6, 7)
    for how, reduce in {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "product": torch.prod}.items():
        node = reduction(how, "ij->i", how, x)  # type: ignore[arg-type]
        program = shard([node], 6, {how: {"j": 3, "i": 2}})
        assert [op.kind for op in program.ops] == [f"{how}_reduction"] * 6 + ["formation"] * 2
        torch.testing.assert_close(program.run({"x": value})[how], reduce(value, 1))


def test_operands_are_aligned_by_their_letters() -> None:
    a, b = tensor("a", 3, 4), tensor("b", 5, 3)
    va, vb = torch.randn(3, 4), torch.randn(5, 3)
    results = run(
        elementwise("outer", "ij,ki->jik", torch.sub, a, b), elementwise("turned", "ij->ji", torch.neg, a), a=va, b=vb
    )
    torch.testing.assert_close(results["outer"], va.T[:, :, None] - vb.T[None])
    torch.testing.assert_close(results["turned"], -va.T)


def test_a_part_of_a_tensor_is_read_in_the_blocks_that_its_reader_wants() -> None:
    x = tensor("x", 7, 9)
    part = crop("inner", crop("part", elementwise("minus", "ij->ij", torch.neg, x), (1, 6), (2, 9)), (1, 5), (0, 7))
    value = torch.randn(7, 9)
    results = run(elementwise("twice", "ij->ij", lambda block: 2 * block, part), part, x=value)
    torch.testing.assert_close(results["inner"], -value[2:6, 2:9])
    torch.testing.assert_close(results["twice"], -2 * value[2:6, 2:9])


def test_complex_numbers_come_apart_and_together() -> None:
    x = tensor("x", 4, 6, 2)
    value = torch.randn(4, 6, 2)
    turned = elementwise("turned", "ij,ij->ij", torch.mul, *[to_complex("z", "ijr->ij", x)] * 2)
    result = run(to_real("parts", "ij->ijr", turned), x=value)["parts"]
    torch.testing.assert_close(result, torch.view_as_real(torch.view_as_complex(value) ** 2))


@pytest.mark.parametrize("cut", [(1, 1), (3, 1), (1, 3), (3, 2)])
def test_the_causal_mask_knows_where_its_block_lies(cut: tuple[int, int]) -> None:
    x = tensor("x", 5, 6)
    program = shard([causal("masked", "st", x)], 1, {"masked": dict(zip("st", cut, strict=True))})
    assert torch.equal(program.run({"x": torch.ones(5, 6)})["masked"] > 0, torch.ones(5, 6).tril() > 0)


def test_blocks_differ_by_one_at_most_and_cover_everything_once() -> None:
    program = chain_mm(size=29, shards=8, partition={"sum": {"i": 7, "j": 5}})
    for whole in (*program.inputs.values(), *program.outputs.values()):
        count = torch.zeros(whole.shape)
        for block in whole.blocks:
            count[block.region] += 1
        assert torch.equal(count, torch.ones(whole.shape))
        assert all(
            max(size) - min(size) <= 1 for size in zip(*(program.tensors[b.tensor].shape for b in whole.blocks), strict=True)
        )


def test_a_tensor_is_copied_only_where_a_block_is_not_there_already() -> None:
    x = tensor("x", 8, 8)
    first = elementwise("first", "ij->ij", torch.neg, x)
    second = elementwise("second", "ij->ij", torch.neg, first)
    same, other = (shard([second], 4, {"first": {"i": 4}, "second": parts}) for parts in ({"i": 4}, {"j": 2}))
    assert "select" not in same.graph.kinds
    assert [op.name for op in other.ops if op.kind == "select"] == ["first in 1x2[0,0]", "first in 1x2[0,1]"]


# --- bad input

two, three = tensor("two", 2, 2), tensor("three", 3, 3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: tensor("x", 3, 0), "'x' has shape"),
        (lambda: einsum("p", "ik,kj", two, two), "'ik,kj' is no equation"),
        (lambda: einsum("p", "ii,ij->ij", two, two), "no letter twice"),
        (lambda: einsum("p", "i1,1j->ij", two, two), "no equation"),
        (lambda: einsum("p", "ik,kj->ij", two, three), "index 'k' .* is 2 in one operand and 3"),
        (lambda: einsum("p", "ik,k->i", two, two), "'k' stands for 'two'"),
        (lambda: einsum("p", "ik,kj->ijz", two, two), "index 'z'"),
        (lambda: einsum("p", "ik,kj->ij", two, two, two), "has 2 operands, and 3 were given"),
        (lambda: einsum("p", "ik->ki", two), "two or more"),
        (lambda: elementwise("p", "ij->i", torch.neg, two), "lacks index 'j'"),
        (lambda: reduction("p", "ij->ij", "sum", two), "must leave out an index"),
        (lambda: reduction("p", "ij->", "sum", tensor("y", 2)), "'ij' stands for 'y'"),
        (lambda: to_complex("p", "ij->i", three), "size 2"),
        (lambda: to_real("p", "ij->ijr", two), "complex tensor"),
        (lambda: causal("p", "i", tensor("y", 2)), "last two indices"),
        (lambda: crop("p", two, (0, 3), (0, 1)), "whose shape is"),
        (lambda: crop("p", two, (0, 2)), "whose shape is"),
        (lambda: shard([two], 2), "computes nothing"),
        (lambda: shard([causal("two", "ij", two)], 2), "named 'two'"),
        (lambda: shard([causal("p", "ij", two)], 0), "0 shards"),
        (lambda: chain_mm(size=4, partition={"BA": {}}), "'BA'; the expression has AB, CDE, DE, sum"),
        (lambda: chain_mm(size=4, partition={"AB": {"x": 2}}), "index 'x'; the op has 'ijk'"),
        (lambda: chain_mm(size=4, partition={"AB": {"i": 5}}), "1 to 4 parts, not 5"),
        (lambda: llama_block(tokens=2, width=4, heads=1, hidden=2, partition={"Q.complex": {"r": 2}}), "1 to 1 parts"),
        (lambda: chain_mm(size=0), "'size' is 0"),
        (lambda: llama_block(width=10, heads=3), "among 3 heads"),
        (lambda: tensor_graph("resnet"), "'resnet'; there are chain-mm, ffnn"),
    ],
)
def test_what_cannot_be_cut_is_an_error_that_says_why(wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_inputs_that_do_not_fit_are_errors_that_name_them() -> None:
    program = chain_mm(size=4)
    inputs = program.random_inputs()
    wrong: dict[str, dict[str, Tensor]] = {
        "'A' is missing": {key: value for key, value in inputs.items() if key != "A"},
        "'F' is unknown; the program takes A, B, C, D, E": {**inputs, "F": inputs["A"]},
        r"'B' is torch.float32 of shape \(4, 5\)": {**inputs, "B": torch.zeros(4, 5)},
        "'B' is torch.float64": {**inputs, "B": inputs["B"].double()},
    }
    for said, values in wrong.items():
        with pytest.raises(UsageError, match=said):
            program.run(values)


def test_running_frees_what_nobody_reads_any_more() -> None:
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def step(block: Tensor) -> Tensor:
        result = block + 1
        made.append(weakref.ref(result))
        alive.append(sum(reference() is not None for reference in made))
        return result

    node: TensorNode = tensor("x", 64)
    for number in range(10):
        node = elementwise(f"step{number}", "i->i", step, node)
    assert torch.equal(run(node, shards=1, x=torch.zeros(64))["step9"], torch.full((64,), 10.0))
    assert alive == [1] + [2] * 9
