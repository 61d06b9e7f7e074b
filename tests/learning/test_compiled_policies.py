"""What compiled parts of policies do with arguments that they cannot take: an error that names the argument, never a crash."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from placeit import _core
from placeit.learning.agents.doppler.agent import DopplerAgent
from placeit.learning.agents.doppler.episodes import DEVICE_INPUTS, Manner, Record
from placeit.learning.agents.doppler.features import DEVICE_FEATURES, HOPS, EpisodeState, Tables
from placeit.learning.agents.doppler.graph import Graph
from placeit.learning.agents.giph.gpnet import GpNets
from placeit.learning.agents.giph.passing import EdgeOrder, Layers, Messages
from placeit.placers.feasibility import random_placements
from placeit.simulator.tables import compiled
from placeit.testing.problems import random_problem

OPS, DEVICES, EPISODES = 8, 3, 2
PROBLEM = random_problem(OPS, DEVICES, seed=3, everywhere=1.0)
ENTRY = int(PROBLEM.order[0])
INNER = int(PROBLEM.edges[0, 1])  # reads what another op makes

SPOILS = [
    pytest.param(lambda array: array.tolist(), TypeError, id="no array"),
    pytest.param(lambda array: array.astype(complex), TypeError, id="another type"),
    pytest.param(lambda array: array[None], ValueError, id="another dimension"),
    pytest.param(lambda array: np.repeat(array, 2, axis=-1)[..., ::2], ValueError, id="a stride"),
    pytest.param(lambda array: array[:-1] if len(array) > 1 else array[:, :-1], ValueError, id="another shape"),
]


def refuses(error, name, call, *args):
    with pytest.raises(error, match=rf"'{name}'"):
        call(*args)


def playing():
    """What an episode is played with."""
    torch.manual_seed(0)
    network, graph = DopplerAgent(width=4).network, Graph.of(PROBLEM)
    with torch.no_grad():
        policy = network.compiled(network.encode(graph), np.zeros((EPISODES, DEVICES, 4), np.float32))
    return SimpleNamespace(
        first=0,
        last=OPS,
        tables=graph.tables,
        arrays=EpisodeState(PROBLEM, EPISODES, graph.tables).arrays,
        record=Record.empty(EPISODES, OPS, DEVICES),
        policy=policy,
        manner=Manner(select=True, place=True, draw=False, explore=0.0),
        kept=np.full((EPISODES, OPS), -1, np.int32),
        rank=graph.seconds_to_exit,
        random=np.zeros(EPISODES, np.uint64),
    )


def play(given):
    at = (given.arrays, given.record, given.policy, given.manner)
    _core.play_episodes(given.first, given.last, *given.tables, *at, given.kept, given.rank, 1.0, given.random)


@pytest.mark.parametrize(("spoil", "error"), SPOILS)
@pytest.mark.parametrize("group", ["arrays", "record", "policy"])
def test_episodes_are_not_played_with_malformed_arrays(group, spoil, error):
    play(playing())
    for name in getattr(playing(), group)._fields:
        given = playing()
        arrays = getattr(given, group)
        # what the shapes of the others are taken from makes one of them the wrong one
        named = {"placement": r"\w+", "bias": r"\w+"}.get(name, name)
        setattr(given, group, arrays._replace(**{name: spoil(getattr(arrays, name))}))
        refuses(error, named, play, given)


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"first": 3, "last": 2}, ValueError, "first"),
        ({"last": OPS + 1}, ValueError, "last"),
        ({"kept": np.full((EPISODES, OPS), DEVICES, np.int32)}, ValueError, "kept"),
        ({"kept": np.full((EPISODES, OPS), -2, np.int32)}, ValueError, "kept"),
        ({"kept": np.full((EPISODES, OPS), -1)}, TypeError, "kept"),
        ({"rank": np.zeros(OPS + 1)}, ValueError, "rank"),
        ({"random": np.zeros(EPISODES, np.int64)}, TypeError, "random"),
        ({"tables": Tables.of(random_problem(OPS + 1, DEVICES))}, ValueError, "placement"),
        ({"tables": Tables(compiled(PROBLEM), Tables.of(random_problem(OPS + 1, DEVICES)).affinity)}, ValueError, "affinity"),
    ],
)
def test_episodes_are_not_played_beyond_the_problem(change, error, name):
    refuses(error, name, play, SimpleNamespace(**vars(playing()) | change))


def test_a_state_that_contradicts_itself_ends_in_an_error():
    given = playing()
    given.arrays.candidates[1] = False
    refuses(ValueError, "candidates", play, given)
    given = playing()
    given.arrays.candidates[:] = True
    given.arrays.candidates[0, ENTRY] = given.arrays.candidates[1, ENTRY] = False
    for row in given.arrays.candidates:
        row[:] = np.arange(OPS) == INNER
    refuses(ValueError, "candidates", play, given)
    given = playing()
    given.arrays.placement[1, 2] = DEVICES
    refuses(ValueError, "placement", play, given)


def test_ops_that_are_not_ready_have_neither_features_nor_places():
    tables, made = Tables.of(PROBLEM), np.zeros((EPISODES, DEVICES, len(DEVICE_FEATURES)))
    arrays = EpisodeState(PROBLEM, EPISODES, tables).arrays
    ready, inner = np.full(EPISODES, ENTRY), np.full(EPISODES, INNER)
    devices = np.zeros(EPISODES, np.int64)
    inputs = np.zeros((EPISODES, OPS, DEVICES, DEVICE_INPUTS), np.float32)
    allowed = np.zeros((EPISODES, OPS, DEVICES), bool)
    for ops in (inner, ready[:1], ready + OPS, ready - OPS):
        refuses(ValueError, "ops", _core.device_features, *tables, arrays, ops, made)
        refuses(ValueError, "ops", _core.place_ops, *tables, arrays, ops, devices)
        refuses(ValueError, "ops", _core.see_devices, *tables, arrays, ops, 0, 1.0, inputs, allowed)
    refuses(ValueError, "made", _core.device_features, *tables, arrays, ready, made[:, :, :-1].copy())
    refuses(ValueError, "devices", _core.place_ops, *tables, arrays, ready, devices + DEVICES)
    refuses(ValueError, "step", _core.see_devices, *tables, arrays, ready, OPS, 1.0, inputs, allowed)
    refuses(ValueError, "allowed", _core.see_devices, *tables, arrays, ready, 0, 1.0, inputs, allowed[:, 1:].copy())
    assert (arrays.placement == -1).all()


def test_walks_that_leave_the_graph_are_refused():
    ptr, to, chance = np.array([0, 1, 2]), np.array([1, 0]), np.ones(2)
    assert _core.affinity(ptr, to, chance).share.shape == (2, HOPS)
    refuses(ValueError, "ptr", _core.affinity, np.array([0, 1, 3]), to, chance)
    refuses(ValueError, "ptr", _core.affinity, np.empty(0, np.int64), to, chance)
    refuses(ValueError, "to", _core.affinity, ptr, np.array([1, 2]), chance)
    refuses(ValueError, "to", _core.affinity, ptr, np.array([1, -1]), chance)
    refuses(ValueError, "chance", _core.affinity, ptr, to, np.ones(3))


def test_a_gpnet_writes_no_further_than_its_batch():
    nets = GpNets([PROBLEM])
    [start] = random_placements(PROBLEM, 1, np.random.default_rng(0))
    nets.set(0, start)
    [net] = nets._nets
    good = {name: getattr(nets, name) for name in ("src", "dst", "edges", "nodes")}
    for name, array in good.items():
        for spoiled, error in ((array[:-1].copy(), ValueError), (array.astype(np.float16), TypeError), (None, TypeError)):
            batch = SimpleNamespace(**good | {name: spoiled})
            with pytest.raises(error, match=r"'(src|dst|edges|nodes)'"):
                net.set(start, batch)
    short = {name: array[:-1].copy() for name, array in good.items()}
    refuses(ValueError, "src", net.move, 0, start, SimpleNamespace(**short))
    for placement in (start + DEVICES, start - DEVICES, start[1:].copy()):
        refuses(ValueError, "placement", net.set, placement, nets)
    refuses(ValueError, "op", net.move, OPS, start, nets)
    with pytest.raises(TypeError):
        net.move(-1, start, nets)


def test_a_gpnet_has_no_node_where_an_op_cannot_run():
    problem = random_problem(OPS, DEVICES, seed=4, everywhere=0.3)
    nets = GpNets([problem])
    placement = np.argmin(problem.feasible, axis=1).astype(np.int32)
    refuses(ValueError, "placement", nets.set, 0, placement)
    rows = np.full((OPS, DEVICES), -1)
    first = np.zeros(len(problem.edges), np.int64)
    for node, begins, name in ((rows - 1, first, "node"), (rows[1:].copy(), first, "node"), (rows, first - 1, "first")):
        refuses(ValueError, name, _core.GpNet, compiled(problem), node, begins, 1.0, 1.0, False)
    refuses(ValueError, "node", _core.GpNet, compiled(problem), rows, first, 1.0, 1.0, False)


def passing():
    """What messages are passed with: a chain of three nodes."""
    order = EdgeOrder(np.array([0, 1]), np.array([1, 2]), np.array([0, 1]), np.arange(4), np.array([0, 0, 1, 2]), False)
    layers = Layers(np.ones((2, 1)), np.ones(2), np.ones((1, 2)), np.ones(1))
    return order, layers, np.ones((2, 2)), np.ones((3, 1)), Messages(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros(3))


@pytest.mark.parametrize(
    ("field", "numbers"),
    [
        ("src", [0, 3]),
        ("src", [-1, 1]),
        ("dst", [1, 3]),
        ("edges", [0, 2]),
        ("node_bounds", [0, 1, 2, 9]),
        ("bounds", [0, 0, 1, 9]),
    ],
)
def test_an_order_that_names_what_is_not_there_is_refused(field, numbers):
    order, *rest = passing()
    _core.pass_forward_float64(order, *rest)
    wrong, (layers, edges, embedding, messages) = order._replace(**{field: np.array(numbers)}), rest
    with pytest.raises(IndexError, match=f"'{field}'"):
        _core.pass_forward_float64(wrong, *rest)
    found = embedding.copy(), np.zeros_like(edges), Layers(*map(np.zeros_like, layers))
    with pytest.raises(IndexError, match=f"'{field}'"):
        _core.pass_backward_float64(wrong, layers, edges, embedding, messages, *found)


def test_messages_of_other_shapes_or_types_are_refused():
    order, layers, edges, embedding, messages = passing()
    refuses(
        ValueError,
        "bounds",
        _core.pass_forward_float64,
        order._replace(bounds=np.empty(0, np.int64)),
        layers,
        edges,
        embedding,
        messages,
    )
    refuses(TypeError, "embedding", _core.pass_forward_float32, order, layers, edges, embedding, messages)
    refuses(ValueError, "edges", _core.pass_forward_float64, order, layers, edges[:1], embedding, messages)
    refuses(
        ValueError,
        "weight",
        _core.pass_forward_float64,
        order,
        layers._replace(weight=np.ones((2, 1))),
        edges,
        embedding,
        messages,
    )
    refuses(
        ValueError, "mean", _core.pass_forward_float64, order, layers, edges, embedding, messages._replace(mean=np.ones((2, 2)))
    )
    found = [embedding.copy(), np.zeros_like(edges), Layers(np.ones((3, 1)), np.ones(3), np.ones((1, 3)), np.ones(1))]
    refuses(ValueError, "of_layers", _core.pass_backward_float64, order, layers, edges, embedding, messages, *found)


def test_groups_are_joined_and_distances_counted_within_the_graph_only():
    edges, group = np.array([[0, 1], [1, 2]]), np.empty(3, np.int64)
    assert _core.join_groups(edges, 2, 1, 1, group) == 1
    for wrong in (np.array([[0, 3]]), np.array([[-1, 0]]), np.array([0, 1])):
        refuses(ValueError, "edges", _core.join_groups, wrong, 1, 1, 1, group)
    refuses(TypeError, "group", _core.join_groups, edges, 1, 1, 1, group.astype(np.int32))
    ptr, others, made = np.array([0, 1, 2], np.int32), np.array([1, 0], np.int32), np.zeros(2)
    _core.fractal_dimensions(ptr, others, made)
    refuses(ValueError, "ptr", _core.fractal_dimensions, ptr + 1, others, made)
    refuses(ValueError, "others", _core.fractal_dimensions, ptr, others + 1, made)
    refuses(ValueError, "dimension", _core.fractal_dimensions, ptr, others, np.broadcast_to(0.0, 2))
