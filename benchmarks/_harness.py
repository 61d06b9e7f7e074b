"""Code that all benchmarks share: command line, claims, rows, and output.

A benchmark is a module with::

    def run(args: Args, report: Report) -> None: ...

    if __name__ == "__main__": main("simulator", run)

A claim that does not hold is printed as such and does not change the exit code: a benchmark reports, it does not judge. If the
claims of a benchmark hold on any machine, its module says so (``main("soak", run, judge=True)``); then the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from benchmarks._results import Origin, add_options, write_results
from placeit.core.errors import PlaceitError
from placeit.devices.host import cpu_name

__all__ = ["Args", "Report", "main", "output", "parser", "quiet_output", "show", "timed"]

Value: TypeAlias = float | int | str | bool | np.generic | None

_LIBRARIES = ("numpy", "openvino", "onnx", "onnxruntime", "torch", "ray", "pymetis", "ortools", "simpy")


@dataclass(frozen=True)
class Args:
    """Options of the command line.

    Attributes:
        quick: shrink the work (fewer cases, fewer repetitions), never what is claimed about it.
        seed: seed of everything random.
        models: names of the models to run, from the models that the benchmark knows; empty for its default.
        backend: the backend that runs them, from the backends that the benchmark knows; empty for its default.
        cases: names of the cases to run; empty for the cases from number ``first`` to before ``last``.
        replay: files of cases that went wrong earlier, to run instead of other cases.
        keep: folder for such files.
        seconds: how long to run; None for the benchmark's default.
        part: name of the part to run, from the parts that the benchmark has; empty for one without parts.
    """

    quick: bool = False
    seed: int = 0
    models: tuple[str, ...] = ()
    backend: str = ""
    cases: tuple[str, ...] = ()
    first: int = 0
    last: int | None = None
    replay: tuple[str, ...] = ()
    keep: str = ""
    seconds: float | None = None
    part: str = ""


def _commit() -> str | None:
    """Return the commit that was measured, marked ``-dirty`` if tracked files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, encoding="utf-8", check=False)
    except OSError:
        return None
    return answer.stdout.strip() or None


@dataclass
class Report:
    """Rows and claims of one benchmark, filled while it runs, and the commit at its start."""

    rows: list[dict[str, Value]] = field(default_factory=list)
    claims: list[dict[str, Value]] = field(default_factory=list)
    commit: str | None = field(default_factory=_commit)

    def row(self, **columns: Value) -> None:
        """Add a row of the table. Rows may have different columns; None is a figure that was not measured."""
        self.rows.append({name: _finite(value) for name, value in columns.items()})

    def claim(
        self, name: str, value: float | None, unit: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """State a measured figure, and its target if there is one.

        Args:
            name: name of the figure.
            value: the value measured by this run; None if it could not be measured here (say why with :meth:`note`).
            unit: of the value; ``""`` for a ratio.
            at_least: smallest value that holds.
            at_most: largest value that holds.
        """
        bounds = [f"{sign} {bound:.10g}" for sign, bound in ((">=", at_least), ("<=", at_most)) if bound is not None]
        holds: bool | None = None
        value = None if value is None or not math.isfinite(value) else float(value)
        if value is not None and bounds:
            holds = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        target = " and ".join(bounds) or None
        self.claims.append({"name": name, "value": value, "unit": unit, "target": target, "holds": holds})

    def add(self, other: Report) -> None:
        """Add the rows and claims of another report, such as one that another process has filled."""
        self.rows += other.rows
        self.claims += other.claims

    def note(self, text: str) -> None:
        """Print a remark on standard error, such as what was left out and why."""
        print(text, file=sys.stderr, flush=True)


def parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    options = argparse.ArgumentParser(prog=prog, description=description)
    options.add_argument("--quick", action="store_true", help="shrink the work")
    options.add_argument("--json", action="store_true", help="print one JSON object on standard output and nothing else")
    options.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    return options


def main(
    name: str,
    run: Callable[[Args, Report], None],
    argv: Sequence[str] | None = None,
    *,
    models: Sequence[str] = (),
    backends: Sequence[str] = (),
    judge: bool = False,
    cases: bool = False,
    replay: bool = False,
    seconds: float | None = None,
    parts: Mapping[str, ModuleType] = {},
) -> None:
    """Run a benchmark from the command line.

    Args:
        name: the benchmark's name, as in ``python -m benchmarks.<name>``.
        run: fills the report.
        argv: arguments; the process's own if None.
        models: names that its option ``--models`` accepts; without any, it has no such option.
        backends: names that its option ``--backend`` accepts; without any, it has no such option. The first is the default.
        judge: exit with 1 if a claim does not hold.
        cases: whether it has the options ``--cases``, ``--first`` and ``--last``.
        replay: whether it has the options ``--replay`` and ``--keep``.
        seconds: default of its option ``--seconds``; without it, it has no such option.
        parts: further parts by name, which its option ``--part`` runs one of in place of the benchmark itself, each with the
            module whose docstring describes it; without any, it has no such option.
    """
    known = parser(f"python -m benchmarks.{name}", sys.modules[run.__module__].__doc__)
    if models:
        known.add_argument(
            "--models", "--only", nargs="+", choices=models, default=(), metavar="MODEL", help=f"of {', '.join(models)}"
        )
    if backends:
        known.add_argument("--backend", choices=backends, default=backends[0], help=f"what runs models (default {backends[0]})")
    if cases:
        known.add_argument("--cases", nargs="+", default=(), metavar="CASE", help="names of cases to run")
        known.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case to run (default 0)")
        known.add_argument("--last", type=int, metavar="N", help="number of the first case not to run")
    if replay:
        known.add_argument("--replay", nargs="+", default=(), metavar="FILE", help="run cases that were kept, and no others")
        known.add_argument("--keep", default=f"{name}-failures", metavar="FOLDER", help="where to keep cases that went wrong")
    if seconds is not None:
        known.add_argument("--seconds", type=float, metavar="S", help=f"how long to go on (default {seconds:g})")
    if parts:
        choices = (name, *parts)
        known.add_argument(
            "--part", choices=choices, default=name, help=f"what to run, of {', '.join(choices)} (default {name})"
        )
    add_options(known)
    options = known.parse_args(argv)
    given: dict[str, Any] = {what: tuple(value) if isinstance(value, list) else value for what, value in vars(options).items()}
    asked = Args(**{what: value for what, value in given.items() if what not in ("json", "results", "note")})
    report = Report()
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
    try:
        with quiet_output():
            run(asked, report)
    except PlaceitError as error:
        sys.exit(f"benchmarks.{name}: {error}")
    result = output(name, report)
    if options.results:
        _keep(result, {name: sys.modules[run.__module__], **parts}, asked.part or name, _command(known, given), options)
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        show(result)
    if judge and any(claim["holds"] is False for claim in report.claims):
        sys.exit(1)


def _keep(
    result: dict[str, Any], parts: Mapping[str, ModuleType], part: str, command: str, options: argparse.Namespace
) -> None:
    """Write a result as the result of one part of a benchmark."""
    head = f"# {result['benchmark']}\n\nThe versions of all libraries are in [report.json](report.json)."
    found = {kind: [{"part": part, **entry} for entry in result[kind]] for kind in ("claims", "rows")}
    write_results(options.results, head, parts, result | found, Origin(command, [options.seed], options.note))


def _command(known: argparse.ArgumentParser, given: Mapping[str, Any]) -> str:
    """Return the command that gives the same figures."""
    words = known.prog.split()
    for what, value in given.items():
        if what not in ("json", "note") and value != known.get_default(what):
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            words += [f"--{what}", *map(str, values)]
    return shlex.join(words)


@contextmanager
def quiet_output() -> Iterator[None]:
    """Redirect all that the work prints, including native libraries, to standard error; only the result is output."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)
        os.close(out)


def output(name: str, report: Report) -> dict[str, Any]:
    """Return the object that ``--json`` prints: the report, the machine and the commit."""
    return {
        "schema": "placeit.benchmark/1",
        "benchmark": name,
        "machine": _machine(),
        "commit": report.commit,
        "claims": report.claims,
        "rows": report.rows,
    }


def show(result: dict[str, Any]) -> None:
    """Print the rows and claims of a result (the object that ``--json`` prints) as tables."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=160)
    machine = result["machine"]
    console.print(f"[bold]{result['benchmark']}[/bold]  {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}")
    groups: list[tuple[tuple[str, ...], list[dict[str, Value]]]] = []
    for row in result["rows"]:
        if not groups or groups[-1][0] != tuple(row):
            groups.append((tuple(row), []))
        groups[-1][1].append(row)
    for columns, rows in groups:
        table = Table(box=box.SIMPLE_HEAD)
        for column in columns:
            numeric = all(isinstance(row[column], float | int | None) for row in rows)
            table.add_column(column.replace("_", " "), justify="right" if numeric else "left")
        for row in rows:
            table.add_row(*(_text(row[column]) for column in columns))
        console.print(table)
    table = Table("claim", box=box.SIMPLE_HEAD)
    for column in ("value", "unit", "target", "holds"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for claim in result["claims"]:
        table.add_row(claim["name"], *(_text(claim[column]) for column in ("value", "unit", "target", "holds")))
    console.print(table)


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "[green]yes[/green]" if value else "[red]no[/red]"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value).replace("[", r"\[")  # otherwise rich would read placeit[cuda] as a style


def _finite(value: Value) -> Value:
    """Replace infinity and NaN, which JSON lacks, and convert NumPy scalars to Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _machine() -> dict[str, Any]:
    libraries = {}
    for library in _LIBRARIES:
        try:
            libraries[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu_name() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "os": platform.platform(),
        "libraries": libraries,
    }


def timed(run: Callable[[], object]) -> Callable[[], float]:
    """Turn a callable into a candidate of a race by timing it from outside."""

    def once() -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return once
