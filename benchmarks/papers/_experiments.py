"""Benchmarks that repeat the experiments of a paper: parts that share jobs, one command line, results that are kept."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from benchmarks._harness import Report, output, parser, quiet_output, show
from benchmarks._results import Origin, add_options, write_results
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab, Setup, tell

__all__ = ["Experiments"]

WORKERS = 2
"""Default number of worker processes: trainings on a core each hardly slow each other down, and more than two need more
memory."""


@dataclass(frozen=True)
class Experiments:
    """The experiments of a paper.

    Attributes:
        name: name of the benchmark.
        parts: modules with ``jobs(setup)`` and ``tell(lab, report[, figures])``, in the order in which they are told.
        sizes: a module with the sizes ``FULL`` and ``QUICK``.
        setup: makes the setup of all jobs from sizes, a seed and a folder.
        head: returns the beginning of the written results.
        seeds: returns the seeds of random draws.
        default: parts that are run by default; empty for all.
        first: parts whose jobs begin before the other parts' jobs, because they take longest.
        figures: whether parts draw figures, and so get them as an argument.
        counts: options that take a number, with their help; ``Sizes.at`` takes them.
    """

    name: str
    parts: Mapping[str, ModuleType]
    sizes: ModuleType
    setup: Callable[[Any, int, Path], Setup[Any]]
    head: Callable[[Any], str]
    seeds: Callable[[Any], Sequence[int]]
    default: Sequence[str] = ()
    first: Sequence[str] = ()
    figures: bool = True
    counts: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, setup: Setup[Any], report: Report, parts: Sequence[str], *, workers: int, results: Path | None = None
    ) -> tuple[Figures, list[str]]:
        """Do the work of some parts, and let them report it.

        Args:
            setup: setup of all jobs.
            report: the report to fill.
            parts: names of the parts.
            workers: processes; 0 to work in this one.
            results: folder of the figures; None to draw none.

        Returns:
            The figures, and the parts that failed.
        """
        lab = Lab(setup, workers, report.commit)
        lab.run(
            [job for part in sorted(parts, key=lambda part: part not in self.first) for job in self.parts[part].jobs(setup)]
        )
        if lab.commits:
            report.commit = ", ".join(sorted(lab.commits))  # also the commits of earlier outcomes
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
        figures = Figures(results)
        if figures.missing:
            report.note("matplotlib is not installed, so figures are left out; install it with: pip install matplotlib")
        return figures, tell(lab, self.parts, parts, report, *([figures] if self.figures else []))

    def main(self, description: str | None, arguments: Sequence[str] | None = None) -> int:
        """Run the benchmark from the command line; returns the exit code."""
        chosen = self._parser(description).parse_args(arguments)
        sizes = self.sizes.QUICK if chosen.quick else self.sizes.FULL
        if self.counts:
            sizes = sizes.at(**{name: getattr(chosen, name) for name in self.counts})
        report, parts = Report(), chosen.part or self.default or list(self.parts)
        with tempfile.TemporaryDirectory() as temporary, quiet_output():
            root = chosen.work or Path(temporary)
            setup = self.setup(sizes, chosen.seed, root / f"{crc32(repr(sizes).encode()):08x}-{chosen.seed}")
            figures, failed = self.run(setup, report, parts, workers=chosen.workers, results=chosen.results)
        result = output(self.name, report)
        if chosen.results:
            origin = Origin(self._command(chosen), self.seeds(setup), chosen.note, figures.drawn)
            write_results(chosen.results, self.head(setup), self.parts, result, origin)
        if chosen.json:
            print(json.dumps(result, allow_nan=False))
        else:
            show(result)
        return 1 if failed else 0

    def _parser(self, description: str | None) -> argparse.ArgumentParser:
        options = parser(f"python -m benchmarks.papers.{self.name}", description)
        default = ", ".join(self.default) or "all"
        options.add_argument(
            "--part",
            "--parts",
            nargs="+",
            choices=self.parts,
            metavar="PART",
            help=f"of {', '.join(self.parts)} (default {default})",
        )
        for name, text in self.counts.items():
            options.add_argument(f"--{name}", type=_count, metavar="N", help=text)
        options.add_argument(
            "--work", type=Path, metavar="DIR", help="keep trained policies and outcomes there, and go on from them"
        )
        add_options(options)
        options.add_argument("--workers", type=int, default=WORKERS, help=f"processes; 0 for none (default {WORKERS})")
        return options

    def _command(self, chosen: argparse.Namespace) -> str:
        """Return the command that gives the same figures, without the folder of kept outcomes and the number of processes."""
        words = ["python", "-m", f"benchmarks.papers.{self.name}", *(["--part", *chosen.part] if chosen.part else [])]
        words += ["--quick"] if chosen.quick else []
        for name in ("seed", *self.counts):
            words += [f"--{name}", str(getattr(chosen, name))] if getattr(chosen, name) else []
        return shlex.join([*words, "--results", str(chosen.results)])


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is not at least 1")
    return count
