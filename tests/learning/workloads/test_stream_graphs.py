import gzip
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from placeit.bench.streams import DEVICES, RATE, StreamGraph, load_stream_graphs
from placeit.core.errors import FileError
from placeit.learning.workloads.registry import find_dataset
from placeit.learning.workloads.stream_graphs import draw_stream_graph
from placeit.placers.metis import partition
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import ThroughputCost, relative_throughput

DEVICE = 2.5e9 / RATE
"""Instructions per tuple that keep a device busy at the source's rate."""
LINK = 0.125
"""Payload that keeps a link busy at the source's rate."""


def generated(count, seed=0):
    rng = np.random.default_rng(seed)
    return [draw_stream_graph(rng) for _ in range(count)]


def published():
    folder = os.environ.get("PLACEIT_DATA")
    if not folder or not (Path(folder) / "stream_graphs.json.gz").exists():
        pytest.skip("PLACEIT_DATA does not name the folder that holds stream_graphs.json.gz")
    return load_stream_graphs(Path(folder) / "stream_graphs.json.gz")


def throughput(graph, *placements):
    """Relative throughput at the usual rate, by the bound; the simulator has to come to the same."""
    problem = graph.problem()
    bound = relative_throughput(ThroughputCost(problem)(np.array(placements)), RATE)
    tuples = 400
    cost = SimulatedCost(problem, requests=tuples)
    assert relative_throughput(cost(np.array(placements)) / tuples, RATE) == pytest.approx(bound, rel=0.02)
    return bound


@pytest.mark.parametrize(
    ("cpu", "payload", "ranking"),
    [("high", "big", "P1 << P2"), ("high", "small", "P1 << P2"), ("low", "big", "P1 >> P2"), ("low", "small", "P1 == P2")],
)
def test_a_pipeline_is_ranked_as_in_table_2(cpu, payload, ranking):
    work, size = {"high": DEVICE, "low": 0.01 * DEVICE}[cpu], {"big": 2 * LINK, "small": 0.01 * LINK}[payload]
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 4]], np.int32)
    graph = StreamGraph(np.array([1.0, *[work] * 4]), np.array([0.01 * LINK, *[size] * 3, 0]), edges, np.ones(4))
    together, spread = throughput(graph, [0, 1, 1, 1, 1], [0, 1, 2, 3, 4])
    assert (together < 0.6 * spread, spread < 0.6 * together) == (ranking == "P1 << P2", ranking == "P1 >> P2")


@pytest.mark.parametrize("payload", ["big", "small"])
def test_data_parallel_pipelines_are_ranked_as_in_table_3(payload):
    size = {"big": 4 * LINK, "small": 0.01 * LINK}[payload]
    edges = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [3, 5], [4, 5]], np.int32)
    graph = StreamGraph(  # two work operators fill a device
        np.array([1.0, *[DEVICE] * 4, 1.0]), np.array([0, size, size, 0, 0, 0]), edges, np.array([0.5, 0.5, 1, 1, 1, 1])
    )
    branches, one_way, both_ways = throughput(graph, [2, 0, 1, 0, 1, 3], [2, 0, 0, 1, 1, 3], [2, 0, 1, 1, 0, 3])
    if payload == "big":
        assert branches > 1.5 * both_ways > 2 * one_way
    else:
        assert branches == both_ways == one_way == 1


def test_generated_graphs_are_as_described():
    for graph in generated(300):
        ops = len(graph)
        branches = np.count_nonzero(graph.edges[:, 0] == 0)
        length = (ops - 2) / branches
        assert 4 <= ops <= 27
        assert 1 <= branches <= 12
        assert 2 <= length <= 12
        assert graph.load.sum() == pytest.approx(2 + (ops > 12) + (ops > 17) + (ops > 23))
        assert graph.inflow[1:-1] == pytest.approx(1 / branches)
        assert graph.inflow[-1] == pytest.approx(1)
        assert graph.payload[-1] == 0
        assert 0 <= graph.payload.min() <= graph.payload.max() <= 0.5


def marginals(graphs):
    """Return figures by name, and the tolerance between two samples of each."""
    instructions = np.concatenate([graph.instructions for graph in graphs]) / DEVICE
    payload = np.concatenate([graph.payload for graph in graphs])
    outgoing = np.array([np.bincount(graph.edges[:, 0]).max() for graph in graphs])
    ops, load = np.array([len(graph) for graph in graphs]), np.array([graph.load.sum() for graph in graphs])
    tenths = np.linspace(0.1, 0.9, 9)
    costs = [
        ThroughputCost(problem := graph.problem())(partition(problem, DEVICES))[0] for graph in graphs[:: len(graphs) // 300]
    ]
    return {
        "operators": (np.quantile(ops, tenths), 2.0),
        "devices needed": (np.bincount(np.rint(load).astype(int), minlength=6) / len(graphs), 0.05),
        "branches": (np.bincount(outgoing, minlength=13) / len(graphs), 0.05),
        "utilisation": (np.quantile(instructions, tenths), 0.2),
        "payload": (np.quantile(payload, tenths), 0.02),
        "METIS": (np.quantile(relative_throughput(costs, RATE), tenths), 0.1),
    }


def test_generated_graphs_have_the_marginals_of_the_published_ones():
    theirs = marginals(published())
    for name, (figures, _) in marginals(generated(3150)).items():
        expected, apart = theirs[name]
        assert figures == pytest.approx(expected, abs=apart), name


def test_the_published_graphs_load_as_many_devices_as_they_say():
    graphs = published()
    assert len(graphs) in (2650, 3150)  # 500 of the graphs were published later
    load = np.array([graph.load.sum() for graph in graphs])
    assert load == pytest.approx(np.rint(load), abs=1e-3)


@pytest.mark.slow
def test_metis_comes_close_to_its_figures_in_the_paper():
    problems = [graph.problem() for graph in published()]
    costs = [ThroughputCost(problem)(partition(problem, 5))[0] for problem in problems]
    for rate, expected in ((1e4, (0.81, 0.70, 0.88)), (2e4, (0.48, 0.37, 0.46))):
        share = relative_throughput(costs, rate)
        assert (share.mean(), np.quantile(share, 0.25), np.median(share)) == pytest.approx(expected, abs=0.03)


def test_what_holds_no_graphs_is_told(tmp_path):
    path = tmp_path / "stream_graphs.json.gz"
    with pytest.raises(FileError, match=r"Cannot read .*stream_graphs\.json\.gz: No such file"):
        load_stream_graphs(path)
    for content in (b"{}", b'{"graphs": [{"cpu": [1]}]}', b'{"graphs": [{"cpu": "x"}]}'):
        path.write_bytes(gzip.compress(content))
        with pytest.raises(FileError, match="does not hold stream graphs: "):
            load_stream_graphs(path)
    for damaged in (gzip.compress(b"["), gzip.compress(b'{"graphs": []}')[:-9], b"no gzip"):
        path.write_bytes(damaged)
        with pytest.raises(FileError, match="stream_graphs"):
            load_stream_graphs(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"edges": [[0, 1], [1, 3]]}, r"graph 1: .* from an operator to a later one, of 0 to 2"),
        ({"edges": [[0, 1], [-1, 2]]}, "graph 1: .* from an operator to a later one"),
        ({"edges": [[0, 2], [2, 1]]}, "graph 1: .* from an operator to a later one"),
        ({"edges": [[0, 1], [1, 2**70]]}, "does not hold stream graphs"),
        ({"edges": [[0, 1]]}, "graph 1: .* as many"),
        ({"payload": [1.0]}, "graph 1: .* as many"),
        ({"cpu": [], "payload": [], "edges": [], "selectivity": []}, "graph 1: .* as many"),
        ({"selectivity": [1.0, -1.0]}, "graph 1: .* finite"),
        ({"cpu": [1.0, float("nan"), 1.0]}, "graph 1: .* finite"),
    ],
)
def test_graphs_that_make_no_sense_are_told(tmp_path, changed, says):
    good = {"cpu": [1.0, 2.0, 1.0], "payload": [0.1, 0.1, 0.0], "edges": [[0, 1], [1, 2]], "selectivity": [1.0, 1.0]}
    path = tmp_path / "stream_graphs.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"graphs": [good]}).encode()))
    assert [len(graph) for graph in load_stream_graphs(path)] == [3]
    path.write_bytes(gzip.compress(json.dumps({"graphs": [good, good | changed]}).encode()))
    with pytest.raises(FileError, match=says):
        load_stream_graphs(path)


def test_generated_graphs_are_a_data_set():
    dataset = find_dataset("streams")
    first = next(dataset.cases("train", 0))
    assert first.problem.key == next(dataset.cases("train", 0)).problem.key != next(dataset.cases("test", 0)).problem.key
    assert first.parameters["operators"] == len(first.problem)
    assert first.problem.devices == DEVICES
    assert sum(1 for _ in dataset.cases("test", 0)) == 630
    assert len(list(itertools.islice(dataset.cases(None, 0), 700))) == 700
