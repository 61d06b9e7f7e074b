"""Read problems from files, such as problems of other papers, to run and check placers on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from placeit.bench.msr import MsrInput
from placeit.bench.problems import BenchProblem
from placeit.bench.reading import reading
from placeit.bench.streams import load_stream_graphs
from placeit.core.errors import FileError
from placeit.core.problem import Problem
from placeit.core.records import contents
from placeit.simulator.scheduler import GIPH_RULES

__all__ = ["read_problems"]

_INDEX = "index.json"  # file that ``placeit generate`` writes beside problems


def read_problems(path: str | Path) -> dict[str, BenchProblem]:
    """Read problems by name from a JSON file (``.json``, or compressed ``.json.gz``), or from all files of a folder.

    The format is detected from the contents:

    - a problem that :meth:`placeit.Problem.to_json` wrote: ``latency``, by the rules of PlaceBench;
    - an input of Tarnawski et al. (NeurIPS 2020), as in their public repository: ``bottleneck``;
    - stream graphs (:func:`placeit.bench.streams.load_stream_graphs`), on five devices: ``bottleneck``;
    - a cost graph of DOPPLER, ``{"compute": [V], "comm": [V], "edges", "devices"}``, and
    - a list of problems of GiPH's generator, ``{"compute": [V], "inv_speed": [D], "feasible", "edges": [[from, to, bytes]],
      "bandwidth": [D, D], "delay": [D, D]}``: ``latency`` by the rules of GiPH's simulator, without contention of links.

    Raises:
        FileError: a file cannot be read or holds none of these; a folder has no problems, two of one name, or some by other
            rules than others.
        ProblemError: a problem in it is not valid.
    """
    path = Path(path)
    if not path.is_dir():
        return _of_file(path)
    every = [one for file in sorted(path.glob("*.json*")) if file.name != _INDEX for one in _of_file(file).values()]
    with reading(path, "problems"):
        found = _by_name(every)
    for one in every:
        if found[one.name] is not one:
            raise FileError(f"Two problems in {path} have the name '{one.name}': rename a file, or the problems in it.")
        if one.rules != every[0].rules:
            raise FileError(f"{path} holds problems by different rules, such as {every[0].name} and {one.name}: divide it.")
    return found


def _of_file(path: Path) -> dict[str, BenchProblem]:
    data, stem = contents(path), path.name.partition(".")[0]
    with reading(path, "problems"):
        if isinstance(data, list):
            return _by_name(
                BenchProblem(f"{case.get('id', number)}/latency", _giph(case), GIPH_RULES, "")
                for number, case in enumerate(data)
            )
        keys = set(data)
        if "graphs" in keys:
            graphs = load_stream_graphs(path)
            return _by_name(BenchProblem(f"{stem}-{number}/bottleneck", graph.problem()) for number, graph in enumerate(graphs))
        if "maxFPGAs" in keys:
            return _by_name([BenchProblem(f"{stem}/bottleneck", MsrInput.read(path).problem, unit="")])
        if "comm" in keys:
            return _by_name([BenchProblem(f"{stem}/latency", _doppler(data), GIPH_RULES, "")])
        if "compute" in keys:
            return _by_name([BenchProblem(f"{stem}/latency", Problem.from_json(path))])
    raise FileError(
        f"{path} holds no problems: it is neither a placeit problem, nor an input of Tarnawski et al., stream graphs, a cost "
        "graph of DOPPLER or problems of GiPH. The docstring of placeit.bench.read_problems has the forms."
    )


def _by_name(problems: Any) -> dict[str, BenchProblem]:
    found = {one.name: one for one in problems}
    if not found:
        raise ValueError("there are none")
    return found


def _giph(case: Mapping[str, Any]) -> Problem:
    work, inverse_speed = np.array(case["compute"]), np.array(case["inv_speed"])
    able = np.zeros((len(work), len(inverse_speed)), bool)
    for op, devices in enumerate(case["feasible"]):
        able[op, devices] = True
    edges = np.array(case["edges"], np.float64).reshape(-1, 3)
    return Problem.from_arrays(
        np.where(able, work[:, None] * inverse_speed, np.inf),
        edges[:, :2].astype(np.int32),
        edges[:, 2],
        [[np.inf if rate is None else rate for rate in row] for row in case["bandwidth"]],
        case["delay"],
    )


def _doppler(case: Mapping[str, Any]) -> Problem:
    compute, comm, edges = np.array(case["compute"]), np.array(case["comm"]), np.array(case["edges"], np.int32).reshape(-1, 2)
    devices = int(case["devices"])
    return Problem.from_arrays(
        np.repeat(compute[:, None], devices, axis=1),
        edges,
        comm[edges[:, 0]],
        np.ones((devices, devices)),
        np.zeros((devices, devices)),
        edge_tensor=edges[:, 0],
    )
