"""Problems of other papers, read from files: their values, runs of placers on them, and the check of what these found."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from placeit import bench
from placeit.core.errors import FileError, ProblemError
from placeit.testing.problems import random_problem

# three nodes on a CPU and two accelerators, two of them of one colour; the output of the first takes 2 to send and to receive
MSR = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 4.0,
    "nodes": [
        {"id": 10, "cpuLatency": 9.0, "fpgaLatency": 5.0, "supportedOnFpga": 1, "size": 3.0},
        {"id": 20, "cpuLatency": 8.0, "fpgaLatency": 2.0, "supportedOnFpga": 1, "size": 2.0, "colorClass": 1},
        {"id": 30, "cpuLatency": 1.0, "fpgaLatency": 1.0, "supportedOnFpga": 0, "size": 0.0},
        {"id": 40, "cpuLatency": 4.0, "fpgaLatency": 1.0, "supportedOnFpga": 1, "size": 1.0, "colorClass": 1},
    ],
    "edges": [
        {"sourceId": 10, "destId": 20, "cost": 2.0},
        {"sourceId": 20, "destId": 40, "cost": 0.5},
        {"sourceId": 40, "destId": 30, "cost": 0.25},
    ],
}
# two ops of 4 and 6, on devices of speed 2 and 1 (the second op on the second only); 10 bytes at 5 a second, after 1 s
GIPH = [
    {
        "id": "small",
        "compute": [4.0, 6.0],
        "inv_speed": [0.5, 1.0],
        "feasible": [[0, 1], [1]],
        "edges": [[0, 1, 10.0]],
        "bandwidth": [[None, 5.0], [5.0, None]],
        "delay": [[0.0, 1.0], [1.0, 0.0]],
    }
]
DOPPLER = {"devices": 2, "compute": [1.0, 2.0, 2.0], "comm": [0.5, 4.0, 4.0], "edges": [[0, 1], [0, 2]]}
STREAMS = {"graphs": [{"cpu": [5e8, 1e9], "payload": [1e4, 0.0], "edges": [[0, 1]], "selectivity": [1.0]}]}

# file, name of its problem, a placement, its value
FILES: dict[str, tuple[Any, str, list[int], float]] = {
    "MSR": (MSR, "file/bottleneck", [1, 2, 0], 5.0 + 2.0),
    "GiPH": (GIPH, "small/latency", [0, 1], 2.0 + 1.0 + 2.0 + 6.0),
    "DOPPLER": (DOPPLER, "file/latency", [0, 0, 1], 1.0 + 0.5 + 2.0),
    "streams": (STREAMS, "file-0/bottleneck", [0, 1], 1e4 * 1e5 / 125e6),
}


def saved(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(("content", "name", "placement", "value"), FILES.values(), ids=FILES)
def test_a_file_is_a_problem_whose_solutions_are_run_and_checked(
    tmp_path: Path, content: Any, name: str, placement: list[int], value: float
) -> None:
    given = bench.read_problems(saved(tmp_path, content))
    assert list(given) == [name]
    assert given[name].value(placement) == pytest.approx(value)
    assert 0 < given[name].bound() <= value
    found = bench.run([given[name]], ["dp", "annealing:evaluations=100"], 10.0)
    assert all(given[name].bound() <= one.value and one.gap is not None for one in found)
    bench.write(tmp_path / "mine.json", found, given[name].rules)
    (verdict,) = bench.check(tmp_path / "mine.json", given)
    assert (verdict.fault, verdict.best, verdict.value) == (None, None, min(one.value for one in found))


def test_a_compressed_file_and_a_problem_of_placeit_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "chain.json.gz").write_bytes(gzip.compress(json.dumps(DOPPLER).encode()))
    assert list(bench.read_problems(tmp_path / "chain.json.gz")) == ["chain/latency"]
    problem = random_problem(6, 2, seed=0)
    problem.to_json(tmp_path / "own.json")
    (own,) = bench.read_problems(tmp_path / "own.json").values()
    assert own.problem.key == problem.key


def test_a_folder_stands_for_the_problems_of_its_files(tmp_path: Path) -> None:
    for seed in (1, 2):
        random_problem(5, 2, seed=seed).to_json(tmp_path / f"own{seed}.json")
    (tmp_path / "index.json").write_text('{"format": "placeit-problems"}')
    given = bench.read_problems(tmp_path)
    assert list(given) == ["own1/latency", "own2/latency"]
    bench.write(tmp_path.parent / "mine.json", bench.run(list(given.values()), ["heft"], 1.0))
    assert [one.fault for one in bench.check(tmp_path.parent / "mine.json", given)] == [None, None]
    (tmp_path / "own2.json.gz").write_bytes(gzip.compress((tmp_path / "own2.json").read_bytes()))
    with pytest.raises(FileError, match=r"Two problems in .* have the name 'own2/latency'"):
        bench.read_problems(tmp_path)
    (tmp_path / "own2.json.gz").write_bytes(gzip.compress(json.dumps(GIPH).encode()))
    with pytest.raises(FileError, match="problems by different rules, such as own1/latency and small/latency"):
        bench.read_problems(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(FileError, match="none does not hold problems: ValueError: there are none"):
        bench.read_problems(tmp_path / "none")


def test_values_have_the_unit_of_the_file(tmp_path: Path) -> None:
    units = {name: next(iter(bench.read_problems(saved(tmp_path, FILES[name][0])).values())).unit for name in FILES}
    assert units == {"MSR": "", "GiPH": "", "DOPPLER": "", "streams": "s"}


def test_nodes_of_colours_that_reach_each_other_are_one_op(tmp_path: Path) -> None:
    nodes = [
        {"id": v, "cpuLatency": 1.0, "fpgaLatency": 1.0, "supportedOnFpga": 1, "colorClass": c} for v, c in enumerate("abacd")
    ]
    edges = [{"sourceId": v, "destId": v + 1, "cost": 1.0} for v in range(4)]
    (one,) = bench.read_problems(saved(tmp_path, MSR | {"nodes": nodes, "edges": edges})).values()
    assert sorted(one.problem.compute[:, 0].tolist()) == [1.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        ({}, FileError, "holds no problems: it is neither"),
        ([], FileError, "does not hold problems: ValueError: there are none"),
        (7, FileError, "does not hold problems"),
        ([GIPH[0] | {"feasible": [[0, 5], [1]]}], FileError, "does not hold problems: IndexError"),
        ([{"compute": [1.0]}], FileError, "does not hold problems: KeyError: 'inv_speed'"),
        (DOPPLER | {"edges": [[0, 1], [1, 0]]}, ProblemError, "file.json: .*cycle"),
        (MSR | {"nodes": []}, FileError, "does not hold an input of a pipeline"),
        (STREAMS | {"graphs": [{}]}, FileError, "does not hold stream graphs"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        bench.read_problems(saved(tmp_path, content))


def test_a_submission_to_other_problems_is_refused_or_named(tmp_path: Path) -> None:
    given = bench.read_problems(saved(tmp_path, DOPPLER))
    found = bench.run(list(given.values()), ["heft"], 1.0)
    bench.write(tmp_path / "mine.json", found)
    with pytest.raises(FileError, match="other rules than the problems: 'links' is channel"):
        bench.check(tmp_path / "mine.json", given)
    bench.write(tmp_path / "mine.json", found, given["file/latency"].rules)
    with pytest.raises(FileError, match="other rules than PlaceBench"):
        bench.check(tmp_path / "mine.json")
    (verdict,) = bench.check(tmp_path / "mine.json", {"files/latency": given["file/latency"]})
    assert verdict.fault == "There is no problem 'file/latency' in the file (did you mean 'files/latency'?)"
