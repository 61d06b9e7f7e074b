"""Command line of :mod:`benchmarks.placebench`."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import placebench
from benchmarks.placebench.models import MODELS
from placeit.bench import problems, submissions
from placeit.core.files import replacing, write_text
from placeit.core.graph import OpGraph
from placeit.planning.coarsen import LARGEST, coarsen
from placeit.profiler.memory_rates import group_reads
from placeit.profiler.sampling import border_bytes
from placeit.report import text

_ROOT = Path(__file__).parents[2]
_SET, _BEST, _PAGE = (_ROOT / name for name in ("placeit/bench/set.json.gz", "placeit/bench/best.json", "docs/placebench.md"))
_GROUPS = 96  # as many as `placeit optimize` makes
_PLACERS = ("dp", "annealing")


def stored_graph(name: str) -> dict[str, Any]:
    """Build the graph of a model's groups, as the set stores it: lists of whole numbers and of names."""
    model = MODELS[name]
    grouping = coarsen(model.graph(), max_groups=_GROUPS, largest=LARGEST)
    groups: OpGraph = grouping.groups
    edges = np.column_stack([groups.edges, groups.edge_tensor])
    return {
        "kind": model.kind,
        "origin": model.origin,
        "clusters": list(model.clusters),
        "shared": [[round(size), list(ops)] for size, ops in groups.shared],
        "ops": list(groups.names),
        "kinds": list(groups.kinds),
        "flops": _whole(groups.flops),
        "bytes": _whole(group_reads(grouping) + border_bytes(groups)),
        "weights": _whole(groups.param_bytes),
        "tensors": _whole(groups.tensor_bytes),
        "edges": edges.tolist(),
    }


def stored_problems(graphs: dict[str, Any], version: int) -> dict[str, Any]:
    """List the problems of some graphs with their keys and lower bounds: every model on its clusters, objectives in turn.

    In version 1, memory is not capped where several ops read one weight.
    """
    found = {}
    for i, name in enumerate(MODELS):
        objectives = [one for one in problems.OBJECTIVES if version > 1 or one != "memory" or not graphs[name]["shared"]]
        for j, cluster in enumerate(graphs[name]["clusters"]):
            problem = problems.built(f"{name}/{cluster}/{objectives[(i + j) % len(objectives)]}", graphs[name], version)
            bound = math.floor(problem.bound() * (1 - 1e-12) * 2**40) / 2**40  # below it by more than its rounding error
            found[problem.name] = {"key": problem.problem.key, "bound": bound}
    return found


def build(names: list[str]) -> None:
    """Write the set, with new graphs of some models, or of all."""
    graphs = problems.stored()["graphs"] if names else {}
    for name in names or MODELS:
        print(name, file=sys.stderr)
        graphs[name] = stored_graph(name)
    graphs = {name: graphs[name] for name in MODELS if name in graphs}
    lists = {str(version): stored_problems(graphs, version) for version in problems.VERSIONS}
    data = {"format": "placeit-bench-set", "version": problems.VERSION, "graphs": graphs, "problems": lists}
    text_of_set = json.dumps(data, separators=(",", ":")) + "\n"
    with replacing(_SET) as temporary:
        temporary.write_bytes(gzip.compress(text_of_set.encode(), mtime=0))


def best(files: list[Path], seconds: float, pattern: str) -> None:
    """Add placements from submissions, or from runs of placers, that are better than the stored ones; update the page."""
    known = submissions.read(_BEST) if _BEST.exists() else {}
    if files:
        for file in files:
            verdicts = {one.problem: one for one in submissions.check(file)}
            wrong = [f"{one.problem}: {one.fault}" for one in verdicts.values() if one.fault]
            if wrong:
                raise SystemExit("\n".join(wrong))
            found = submissions.read(file)
            known = submissions.better(known, [replace(found[name], value=one.value) for name, one in verdicts.items()])
    else:
        for name in problems.names(pattern):
            found = submissions.run([name], _PLACERS, seconds)
            known = submissions.better(known, found)
            print(name, {one.placer: one.value for one in found}, file=sys.stderr)
    submissions.write(_BEST, [known[name] for name in problems.names() if name in known])
    page = _PAGE.read_text(encoding="utf-8")
    write_text(_PAGE, re.sub(r"(?<=<!-- table -->\n).*(?=<!-- end -->)", lambda _: table(), page, flags=re.DOTALL))


def table() -> str:
    """Return the table of all problems, in Markdown."""
    submissions.best.cache_clear()
    lines = ["| problem | ops | best known | lower bound | gap | found by | in |", "|---|---|---|---|---|---|---|"]
    for one in submissions.listed():
        row = (one.problem, len(problems.stored()["graphs"][one.problem.partition("/")[0]]["ops"]), text.seconds(one.best))
        end = (text.seconds(one.bound), text.percent(one.gap), one.placer, text.duration(one.seconds))
        lines.append("| " + " | ".join(map(str, (*row, *end))) + " |")
    return "\n".join(lines) + "\n"


def _whole(values: Any) -> list[int]:
    return [round(value) for value in values.tolist()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m benchmarks.placebench",
        description=placebench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("models", nargs="*", metavar="MODEL")
    finding = commands.add_parser("best")
    finding.add_argument("files", nargs="*", type=Path, metavar="FILE")
    finding.add_argument("--seconds", type=float, default=1.0, help="of each placer for each problem")
    finding.add_argument("--problems", default="*", metavar="PATTERN", help="problems by name")
    given = parser.parse_args()
    if given.command == "build":
        build(given.models)
    else:
        best(given.files, given.seconds, given.problems)
