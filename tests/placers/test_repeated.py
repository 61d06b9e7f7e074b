"""Blocks that a graph repeats: which ops correspond, and whose device goes where."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.placers import parse_placer
from placeit.placers.repeated import Repeated, repeated_blocks
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem

LAYERS = 4


def layers(*, numbering=None, seconds=None, kinds=True, weights=0.0, memory=np.inf, last_reads_first=False):
    """A mask and an input, then layers of two branches that meet (0, 1, 2 after what came before), then an output.

    Each layer reads the mask; an op takes ten times the one before it in its layer, so that they are told apart. Only what
    meets has weights.
    """
    costs, edges, names = [1.0, 1.0], [], ["mask", "input"]
    for layer in range(LAYERS):
        first = len(costs)
        names += [f"layer{layer}.{op}" for op in ("left", "right", "meet")]
        costs += [10.0, 100.0, 1000.0]
        edges += [(first - 1, first), (first - 1, first + 1), (0, first + 1), (first, first + 2), (first + 1, first + 2)]
    if last_reads_first:
        edges.append((2, len(costs) - 1))
    edges.append((len(costs) - 1, len(costs)))
    costs, names = [*costs, 5.0], [*names, "output"]
    count = len(costs)
    number = np.arange(count) if numbering is None else np.asarray(numbering)
    place = np.argsort(number)
    compute = np.array(costs) * (1.0 if seconds is None else seconds(count))
    return Problem.from_arrays(
        np.repeat(compute[place][:, None], 3, axis=1),
        number[np.array(edges)],
        np.ones(len(edges)),
        np.full((3, 3), 10.0),
        np.full((3, 3), 0.1),
        param_bytes=[weights * names[v].endswith("meet") for v in place],
        memory=np.full(3, memory),
        op_names=[names[v] for v in place],
        kinds=[names[v].rpartition(".")[2] for v in place] if kinds else None,
    )


def names_of(problem, blocks):
    return [[problem.op_names[v] for v in block] for block in blocks]


EXPECTED = [[f"layer{layer}.{op}" for op in ("left", "right", "meet")] for layer in range(LAYERS)]


@pytest.mark.parametrize("kinds", [True, False])
def test_corresponding_ops_of_blocks_that_follow_each_other_are_found(kinds):
    problem = layers(kinds=kinds)
    assert names_of(problem, repeated_blocks(problem)) == EXPECTED


def test_blocks_are_found_where_ops_are_not_numbered_in_topological_order():
    problem = layers(numbering=np.arange(2 + 3 * LAYERS + 1)[::-1])
    columns = names_of(problem, repeated_blocks(problem).T)
    last = zip(*EXPECTED[1:], strict=True)  # in that order the mask comes between ops of the first layer
    assert {frozenset(column) for column in columns} == {frozenset(column) for column in last}


def test_measured_seconds_that_differ_make_no_other_blocks_where_kinds_are_known():
    noisy = {"seconds": lambda count: np.random.default_rng(0).uniform(0.9, 1.1, count)}
    assert len(repeated_blocks(layers(**noisy))) == LAYERS
    assert len(repeated_blocks(layers(kinds=False, **noisy))) == 0


def test_an_edge_that_one_block_alone_has_ends_the_repetition():
    problem = layers(last_reads_first=True)
    assert names_of(problem, repeated_blocks(problem)) == EXPECTED[:-1]


def test_shards_beside_each_other_are_no_blocks():
    edges = [(shard, 4 + shard) for shard in range(4)] + [(4 + shard, 8) for shard in range(4)]
    pairs = [(2 * shard, 2 * shard + 1) for shard in range(4)] + [(2 * shard + 1, 8) for shard in range(4)]
    for wiring in (edges, pairs):
        problem = Problem.from_arrays(np.ones((9, 2)), wiring, np.ones(8), np.ones((2, 2)), np.zeros((2, 2)))
        assert repeated_blocks(problem).shape == (0, 0)


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_any_wiring_are_found_behind_whatever_comes_first(seed):
    rng = np.random.default_rng(seed)
    size, count, before, after = (int(rng.integers(low, high)) for low, high in ((1, 8), (2, 6), (8, 12), (0, 4)))
    inner = [(i, j) for i in range(size) for j in range(i + 1, size) if j == i + 1 or rng.random() < 0.3]
    onward = [(i, j) for i in range(size) for j in range(size) if (i, j) == (size - 1, 0) or rng.random() < 0.2]
    shared = [(0, j) for j in range(size) if rng.random() < 0.3]  # the first op of all, which no block reads otherwise
    edges = []
    for first in range(before, before + count * size, size):
        edges += [(first + i, first + j) for i, j in inner] + [(first - size + i, first + j) for i, j in onward]
        edges += [(u, first + j) for u, j in shared]
    end = before + count * size
    edges += [(int(rng.integers(v)), v) for v in range(end, end + after)]
    costs = np.concatenate([100.0 + np.arange(before), np.tile(1.0 + np.arange(size), count), 200.0 + np.arange(after)])
    links = (np.ones((3, 3)), np.zeros((3, 3)))
    problem = Problem.from_arrays(np.repeat(costs[:, None], 3, axis=1), edges, np.ones(len(edges)), *links)
    blocks = repeated_blocks(problem)
    assert blocks.tolist() == np.arange(before, end).reshape(count, size).tolist()
    found = parse_placer("repeated:placer=random").place(problem, SimulatedCost(problem), seed=seed, evaluations=5)
    assert (found[blocks] == found[blocks[0]]).all()


@pytest.mark.parametrize("placer", ["random", "annealing:evaluations=300", "heft"])
def test_every_block_is_placed_like_the_first(placer):
    problem = layers()
    blocks = repeated_blocks(problem)
    for seed in range(5):
        found = parse_placer(f"repeated:placer={placer}").place(problem, SimulatedCost(problem), seed=seed, evaluations=None)
        assert (found[blocks] == found[blocks[0]]).all()


def test_what_is_valued_is_the_whole_graph_and_the_best_of_it_is_the_answer():
    problem, asked = layers(), []
    blocks, wanted = repeated_blocks(problem), np.array([2, 0, 1])

    def cost(placements):
        """Counts ops that are not where they are wanted: the output on device 1, all others by their place in a block."""
        asked.append(placements)
        return 1.0 + (placements[:, blocks] != wanted).sum(axis=(1, 2)) + (placements[:, -1] != 1)

    found = parse_placer("repeated:placer=local-search").place(problem, cost, seed=0, evaluations=400)
    assert sum(map(len, asked)) <= 400
    assert all(batch.shape[1] == len(problem) for batch in asked)
    assert found[blocks].tolist() == [wanted.tolist()] * LAYERS
    assert found[-1] == 1


def test_an_op_of_the_block_costs_as_much_as_its_likes_together():
    """One op of each layer takes almost all the time, so HEFT has to look at sums to spread two such ops over two devices."""
    edges = [(op, op + 2) for op in range(18)] + [(op, op + 1) for op in range(1, 18, 2)]
    costs = np.tile([3.0, 4.0], 10)
    problem = Problem.from_arrays(
        np.repeat(costs[:, None], 2, axis=1), edges, np.full(len(edges), 1e-6), np.ones((2, 2)), np.zeros((2, 2))
    )
    blocks = repeated_blocks(problem)
    assert blocks.shape[1] == 2
    found = parse_placer("repeated:placer=heft").place(problem, SimulatedCost(problem), seed=0, evaluations=0)
    assert found[blocks[0]].tolist() in ([0, 1], [1, 0])


def test_without_repetition_or_without_room_for_it_the_graph_itself_is_placed():
    for problem in (random_problem(12, 3, 1, everywhere=1.0), layers(weights=1.0, memory=3.0)):
        cost = SimulatedCost(problem)
        alone, repeated = (
            parse_placer(name).place(problem, cost, seed=3, evaluations=50) for name in ("random", "repeated:placer=random")
        )
        assert repeated.tolist() == alone.tolist()


def test_copies_of_a_shared_weight_fit_into_memory():
    plain = layers()
    last = len(plain) - 1
    problem = dataclasses.replace(
        plain, param_bytes=np.eye(1, len(plain))[0] * 10.0, memory=np.array([10.0, 5.0, 5.0]), shared=((10.0, (0, last)),)
    )
    found = parse_placer("repeated:placer=random").place(
        problem, lambda placements: 1.0 + (placements[:, last] != 1), seed=0, evaluations=None
    )
    problem.check(found)


@pytest.mark.parametrize(("placer", "words"), [("repeated", "name another one"), ("nobody", "no placer 'nobody'")])
def test_a_placer_that_cannot_place_the_block_is_an_error(placer, words):
    problem = layers()
    with pytest.raises(UsageError, match=words):
        parse_placer(f"repeated:placer={placer}").place(problem, SimulatedCost(problem), seed=0, evaluations=None)


def test_options_that_it_does_not_have_belong_to_the_placer_that_it_asks() -> None:
    assert parse_placer("repeated:placer=giph:episodes=2,steps_per_op=3") == Repeated("giph:episodes=2,steps_per_op=3")
    for text, name in (("repeated:placer=random:samples=2,steps=3", "random"), ("repeated:placer=random,steps=3", "repeated")):
        with pytest.raises(UsageError, match=f"The placer '{name}' has no option 'steps'"):
            parse_placer(text).place(layers(), SimulatedCost(layers()), seed=0, evaluations=5)
