"""The problems of PlaceBench, what is known of them, and the check of what others have found."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit import bench
from placeit.bench import problems
from placeit.bench.clusters import CLUSTERS
from placeit.bench.submissions import best, listed
from placeit.core.errors import FileError, UsageError
from placeit.core.problem import Problem
from placeit.placers.local_search import LocalSearch
from placeit.testing import oracle

SET = Path(problems.__file__).with_name("set.json.gz")
NAMES = bench.names()


def test_there_are_models_of_all_kinds_on_six_clusters_by_three_objectives_in_little_space() -> None:
    models, clusters, objectives = (set(part) for part in zip(*(name.split("/") for name in NAMES), strict=True))
    graphs = problems.stored()["graphs"]
    assert len(models) >= 40
    assert models == graphs.keys()
    assert clusters == CLUSTERS.keys()
    assert objectives == problems.OBJECTIVES.keys()
    assert {"CNN", "transformer", "MoE", "diffusion", "GNN", "recurrent"} <= {graph["kind"] for graph in graphs.values()}
    assert sum(path.stat().st_size for path in SET.parent.iterdir() if path.is_file()) < 5e6


@pytest.mark.parametrize("version", problems.VERSIONS)
def test_every_problem_is_the_published_one_and_its_costs_add_up_exactly(version: int) -> None:
    for name in bench.names(version=version):
        problem = bench.load(name, version).problem  # compares the key
        moved = problem.latency + problem.edge_bytes.max() / problem.bandwidth
        assert (np.mod(np.r_[problem.compute.ravel(), moved.ravel()], 2.0**-40) == 0).all()
        assert problem.compute.sum() + problem.edge_bytes.sum() / problem.bandwidth.min() < 2.0**12


def valued_twice(name: str) -> None:
    """Check the best known placement by both implementations, and its bound."""
    one, known = bench.load(name), best()[name]
    place = [one.problem.device_names.index(device) for device in known.placement]
    assert (np.array(oracle.held(one.problem, place)) <= one.problem.memory).all()
    second = (
        oracle.seconds_per_request(one.problem, place, 8)
        if one.objective == "throughput"
        else oracle.makespan(one.problem, place)
    )
    assert known.value == one.value(place) == second
    assert problems.known()[name]["bound"] == pytest.approx(one.bound(), rel=1e-9)
    assert known.value >= problems.known()[name]["bound"]


@pytest.mark.parametrize("name", NAMES[::16])
def test_the_best_known_values_are_right(name: str) -> None:
    valued_twice(name)


@pytest.mark.slow
def test_all_best_known_values_are_right() -> None:
    assert best().keys() == set(NAMES)
    for name in NAMES:
        valued_twice(name)


def test_a_device_holds_a_weight_of_several_ops_once_and_in_version_1_for_each_of_them() -> None:
    now, before = bench.load("tree_lstm/gpus4/latency").problem, bench.load("tree_lstm/gpus4/latency", 1).problem
    everything = np.zeros((1, len(now)), np.int32)
    (size, readers), *_ = now.shared
    assert (size, len(readers), before.shared) == (512 * 2 * 512 * 4 * 4, 31, ())  # one cell for all pairs of subtrees
    assert now.held(everything)[0, 0] * 31 == before.held(everything)[0, 0]


def test_a_submission_to_version_1_is_checked_by_its_problems(submission: Callable[..., Path]) -> None:
    (verdict,) = bench.check(submission(lambda data, one: data.update(version=1)))
    assert (verdict.fault, verdict.best) == (None, verdict.stated)  # a problem of both versions
    tied = "tree_lstm/gpus4/latency"
    path = submission(lambda data, one: data.update(problems={tied: {**one, "placement": best()[tied].placement}}))
    (verdict,) = bench.check(path)
    assert (verdict.value, verdict.best) == (best()[tied].value, None)


def test_a_problem_of_another_version_is_said() -> None:
    with pytest.raises(UsageError, match="no problem 'lstm/gpus4/memory' in PlaceBench 1; version 2 has it"):
        bench.load("lstm/gpus4/memory", 1)
    with pytest.raises(UsageError, match="has PlaceBench 1 to 2, not 3: install a newer placeit"):
        bench.names(version=3)


def test_a_problem_is_also_json(tmp_path: Path) -> None:
    problem = bench.load("resnet50/soc/throughput").problem
    problem.to_json(tmp_path / "problem.json")
    assert Problem.from_json(tmp_path / "problem.json").key == problem.key


@pytest.mark.slow  # the import of PyTorch Geometric takes seconds
def test_a_problem_is_also_graph_data() -> None:
    one = bench.load("resnet50/soc/throughput")
    data = one.data()
    data.validate()
    assert (data.num_nodes, data.num_edges) == (len(one.problem), len(one.problem.edges))
    assert (data.x.numpy() == one.problem.compute).all()


def test_a_name_that_does_not_exist_is_said_with_a_similar_one() -> None:
    name = NAMES[0]
    with pytest.raises(UsageError, match=f"no problem '{name}x'.*did you mean '{name}'"):
        bench.load(name + "x")
    with pytest.raises(UsageError, match="matches 'nothing'"):
        bench.names("nothing")


@pytest.fixture
def submission(tmp_path: Path) -> Callable[..., Path]:
    """Write the best known placement of a problem with a memory cap, changed in one way."""
    name = next(name for name in NAMES if name.endswith("/memory"))
    bench.write(tmp_path / "one.json", [best()[name]])
    data = json.loads((tmp_path / "one.json").read_text())

    def write(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
        change(data, data["problems"][name])
        (tmp_path / "one.json").write_text(json.dumps(data))
        return tmp_path / "one.json"

    return write


def test_objects_and_names_are_asked_about_all_problems_that_match() -> None:
    found = bench.run("vgg/*", [LocalSearch(kick=0.5), LocalSearch(), "heft"], 1.0)
    assert [one.placer for one in found] == ["LocalSearch:kick=0.5", "LocalSearch", "heft"] * 3
    assert all(one.failure is None for one in found)


def test_a_right_submission_passes(submission: Callable[..., Path]) -> None:
    (verdict,) = bench.check(submission(lambda data, one: None))
    assert (verdict.fault, verdict.value) == (None, verdict.stated)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data, one: one.update(value=one["value"] / 2), r"its value is \S+ s, and the submission states \S+"),
        (lambda data, one: one["placement"].__setitem__(0, "gpu9"), r"on the device 'gpu9', which the problem does not have"),
        (lambda data, one: one["placement"].pop(), r"it places \d+ ops, and the problem has \d+"),
        (lambda data, one: one.update(placement=one["placement"][:1] * len(one["placement"])), r"holds .*B, and the weights"),
        (lambda data, one: data.update(problems={"vgg/moon/latency": one}), "no problem 'vgg/moon/latency' in PlaceBench 2"),
    ],
    ids=["a wrong value", "an unknown device", "a missing op", "a violated cap", "an unknown problem"],
)
def test_a_wrong_placement_is_named(submission: Callable[..., Path], change: Any, says: str) -> None:
    (verdict,) = bench.check(submission(change))
    assert re.search(says, verdict.fault or "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data, one: data["rules"].update(queue="fifo"), "'queue' is fifo, and has to be priority"),
        (lambda data, one: data["rules"].update(noise=1), "'noise' is 1, and has to be absent"),
        (lambda data, one: data.update(version=3), "has version 3; this placeit reads version 1 and 2"),
        (lambda data, one: one.pop("value"), "is not a submission to PlaceBench: .*value"),
    ],
    ids=["other rules", "a further rule", "a newer version", "no value"],
)
def test_a_file_that_cannot_be_compared_is_refused(submission: Callable[..., Path], change: Any, says: str) -> None:
    path = submission(change)
    with pytest.raises(FileError, match=says):
        bench.check(path)


def test_the_page_has_the_best_known_values() -> None:
    page = (Path(__file__).parents[2] / "docs/placebench.md").read_text(encoding="utf-8")
    for one in listed():
        assert f"| {one.problem} |" in page


@pytest.mark.slow
def test_the_build_makes_the_stored_graphs_again() -> None:
    program = (
        "import json; from benchmarks.placebench.__main__ import stored_graph; print(json.dumps([stored_graph(n) for n in {}]))"
    )
    names = ["mobilenet", "experts4", "ffnn", "squeezenet"]
    built = subprocess.run([sys.executable, "-c", program.format(names)], capture_output=True, check=True, text=True).stdout
    stored = json.loads(gzip.decompress(SET.read_bytes()))["graphs"]
    assert json.loads(built) == [stored[name] for name in names]
