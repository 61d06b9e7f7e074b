"""Every placer against wall clock and against evaluations: the quality of its answers at each budget.

The value of a placer at a budget is the value of its answer when it is told this budget (a deadline, or a number of
evaluations), in a separate run with the same seed. If a run ends earlier, its answer counts for all larger budgets. So placers
that plan by their budget, as annealing does, are called as ``placeit optimize`` calls them. An answer that is late by more than
a quarter does not count. Regret is the excess of a value over the best value that any run found for that problem.

Simulated problems are GiPH's generated sets, tensor programs and ONNX models, twenty each, on described devices, and graphs of
10,000 and 100,000 ops, for which only placers that can place them are asked. Two processes at a time answer, each on one core.
Measured problems are models on two cores, one of them slowed. Placers get measured values (``MeasuredCost``). They are compared
with ``placeit optimize`` with its default options and with its placers for any budget (calibrated search). All answers are
raced once more, and only that race counts.

The smallest budget comes first, on as many problems as there is time for; larger budgets are tried on the first of these
problems. Answers are kept in the folder ``--work``, and the same command continues from them, also with more ``--minutes``.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks._anytime_journal import Journal, Unit
from benchmarks._anytime_placers import contenders, name_of
from benchmarks._harness import Report, output, parser, quiet_output, show
from benchmarks._results import add_options
from placeit.core.errors import PlaceitError
from placeit.placers.registry import parse_placer

__all__ = ["FULL", "PARTS", "QUICK", "Sizes", "main"]

PARTS = ("simulated", "measured")
TENSOR = "chain-mm:shards=8,size=1024"


@dataclass(frozen=True)
class Sizes:
    """The amount of work.

    Attributes:
        problems: number of problems of each family.
        large: numbers of ops of large graphs.
        seconds: budgets of simulated problems, in seconds.
        evaluations: budgets of simulated problems, in evaluations.
        reference: seconds for which each simulated problem is annealed with another seed, for the best known value.
        measured: budgets of measured problems, in seconds.
        models: models that are measured.
        slowdowns: slowdowns of one core of each measured cluster.
        minutes: minutes for all of it.
    """

    problems: int
    large: tuple[int, ...]
    seconds: tuple[float, ...]
    evaluations: tuple[float, ...]
    reference: float
    measured: tuple[float, ...]
    models: tuple[str, ...]
    slowdowns: tuple[float, ...]
    minutes: float


FULL = Sizes(
    problems=20,
    large=(10_000, 100_000),
    seconds=(1, 10, 100),
    evaluations=(1, 3, 10, 30, 100, 300, 1000),
    reference=3,
    measured=(10, 30, 100),
    models=("light_inception_v1", "inception_v3", TENSOR),
    slowdowns=(2, 3),
    minutes=45,
)
QUICK = Sizes(
    problems=2,
    large=(10_000,),
    seconds=(0.3, 1),
    evaluations=(1, 10, 100),
    reference=1,
    measured=(3,),
    models=("light_squeezenet",),
    slowdowns=(2,),
    minutes=3,
)
_SHARES = {"reference": 0.06, "evaluations": 0.12, "seconds": 0.22, "large": 0.16, "measured": 0.36}
"""Shares of the minutes; the rest is for starting and for the last races."""
_SEARCH = "annealing"  # the search that learning is compared with in simulation


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before any library reads it, here and in the workers
    options = parser("python -m benchmarks.anytime", __doc__)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("--part", choices=PARTS, action="append", help="one of them alone; both without it")
    options.add_argument(
        "--minutes", type=float, help=f"for both parts (default {FULL.minutes:g}, {QUICK.minutes:g} with --quick)"
    )
    options.add_argument(
        "--seconds", nargs="+", type=float, metavar="S", help="budgets in place of the usual ones, and of all evaluations"
    )
    options.add_argument(
        "--placers", nargs="+", metavar="PLACER", help="ask these, in place of every registered one; options may follow a colon"
    )
    options.add_argument("--also", nargs="+", default=(), metavar="PLACER", help="ask these, too: doppler:weights=FILE")
    options.add_argument("--work", type=Path, metavar="DIR", help="keep answers there, and go on from them")
    add_options(options)
    options.add_argument("--workers", type=int, default=2, help="processes that simulate; 0 for none (default 2)")
    chosen = options.parse_args(arguments)
    sizes = QUICK if chosen.quick else FULL
    if chosen.seconds:
        if not all(0 < budget < math.inf for budget in chosen.seconds):
            options.error("argument --seconds: a budget is positive and finite")
        budgets = tuple(sorted({*chosen.seconds}))
        sizes = replace(sizes, seconds=budgets, measured=budgets, evaluations=())
    minutes = sizes.minutes if chosen.minutes is None else chosen.minutes
    placers = [*(chosen.placers or contenders()), *chosen.also]
    report, parts = Report(), {}
    try:
        with tempfile.TemporaryDirectory() as temporary, quiet_output():
            for placer in placers:
                parse_placer(placer)  # a typing error should not cost a run first
            work = chosen.work or Path(temporary)
            for part in chosen.part or PARTS:
                run = _simulated if part == "simulated" else _measured
                parts[part] = run(report, sizes, placers, chosen, work, 60 * minutes)
    except PlaceitError as error:
        sys.exit(f"benchmarks.anytime: {error}")
    result = output("anytime", report)
    for part in parts.values():
        part.update(machine=result["machine"], command=_command(chosen), note=chosen.note, seed=chosen.seed)
    if chosen.results:
        from benchmarks._anytime_tell import write_results

        write_results(chosen.results, parts)
    if chosen.json:
        print(json.dumps(result | {"points": [point for part in parts.values() for point in part["points"]]}, allow_nan=False))
    else:
        show(result)


def _simulated(
    report: Report, sizes: Sizes, placers: Sequence[str], chosen: argparse.Namespace, work: Path, seconds: float
) -> dict[str, Any]:
    from benchmarks._anytime_placers import scales
    from benchmarks._anytime_plan import answered
    from benchmarks._anytime_problems import FAMILIES, Case, family, large_family
    from benchmarks._anytime_simulated import REFERENCE, Simulated
    from benchmarks._anytime_tell import ALL, Table, tell

    journal = Journal(work / "simulated.jsonl")
    report.note("  stating the problems")
    families = {name: family(name, sizes.problems, chosen.seed) for name in FAMILIES}
    turns: list[Case] = [case for some in zip(*families.values(), strict=False) for case in some]
    large = {f"{size:,} ops": large_family(size, chosen.seed) for size in sizes.large}
    large_turns = [case for some in zip(*large.values(), strict=True) for case in some]
    plan: list[str] = []
    budgets_of: dict[Unit, tuple[float, ...]] = {"evaluations": sizes.evaluations, "seconds": sizes.seconds}
    units = [(unit, budgets) for unit, budgets in budgets_of.items() if budgets]
    with Simulated(journal, placers, chosen.seed, chosen.workers, report.commit) as simulated:
        simulated.reference(turns, sizes.reference, _SHARES["reference"] * seconds)
        for unit, budgets in units:
            tried = simulated.budgets(unit, budgets, turns, _SHARES[unit] * seconds)
            plan.append(f"{unit}: " + ", ".join(f"{budget:g} on {count} problems" for budget, count in tried.items()))
    with Simulated(journal, [p for p in placers if scales(p)], chosen.seed, chosen.workers, report.commit) as scaling:
        scaling.reference(large_turns, sizes.reference, _SHARES["large"] * seconds / 10)
        tried = scaling.budgets("seconds", sizes.seconds, large_turns, _SHARES["large"] * seconds)
        plan.append("large, seconds: " + ", ".join(f"{budget:g} on {count} problems" for budget, count in tried.items()))
    best = _best_simulated(journal, chosen.seed)
    tables = []
    of = [(unit, name, cases, simulated) for unit, _ in units for name, cases in [*families.items(), (ALL, turns)]]
    of += [("seconds", name, cases, scaling) for name, cases in large.items()]
    for unit, name, cases, who in of:
        budgets = budgets_of[unit]
        values: dict[str, dict[float, dict[str, float | None]]] = {}
        for placer in who.asked_about(unit):
            values[placer] = {}
            for case in cases:
                runs = who.runs(unit, case.name, placer, budgets)
                for budget, answer in answered(runs, unit, budgets).items():
                    values[placer].setdefault(budget, {})[case.name] = None if answer is None else answer.value
        tables.append(Table.of("simulated", unit, name, budgets, values, best, _SEARCH))
    first = len(report.rows)
    points = tell(tables, report, chosen.seed)
    for name, cases in (families | large).items():
        bounds = {key.problem: answer.bound for key, answer in journal.items() if key.placer == REFERENCE}
        over = [best[c.name] / bound - 1 for c in cases if c.name in best and (bound := bounds.get(c.name))]
        if over:
            mean = 100 * sum(over) / len(over)
            plan.append(f"{name}: the best known exceeds a lower bound of all placements by {mean:.1f} % in the mean")
    return _part(report, first, points, plan, journal)


def _measured(
    report: Report, sizes: Sizes, placers: Sequence[str], chosen: argparse.Namespace, work: Path, seconds: float
) -> dict[str, Any]:
    from benchmarks._anytime_measured import CALIBRATED, Measured, Setting, placed_values
    from benchmarks._anytime_problems import measured_model, unequal_cores
    from benchmarks._anytime_regret import best_known
    from benchmarks._anytime_tell import Table, tell
    from benchmarks._models import two_cores
    from placeit.profiler.cache import Cache

    journal = Journal(work / "measured.jsonl")
    placers = [placer for placer in placers if placer != "annealing"]  # it is local-search where values are measured
    settings = [
        Setting(
            f"{model}, a core slowed {slowdown:g} times",
            functools.cache(functools.partial(measured_model, model)),
            unequal_cores(two_cores(), slowdown),
        )
        for slowdown in sizes.slowdowns
        for model in sizes.models
    ]
    measured = Measured(journal, placers, chosen.seed, Cache(work / "costs", runs=False), report.commit)
    tried = measured.budgets(sizes.measured, settings, _SHARES["measured"] * seconds)
    for setting in settings:
        measured.race(setting, sizes.measured)
    names = [setting.name for setting in settings]
    values = placed_values(measured, names, measured.contenders, sizes.measured)
    best = best_known({n: [found.get(n) for some in values.values() for found in some.values()] for n in names})
    table = Table.of("measured", "seconds", "models on unequal cores", sizes.measured, values, best, CALIBRATED)
    first = len(report.rows)
    points = tell([table], report, chosen.seed)
    plan = ["seconds: " + ", ".join(f"{budget:g} in {count} settings" for budget, count in tried.items())]
    return _part(report, first, points, plan, journal)


def _best_simulated(journal: Journal, seed: int) -> Mapping[str, float]:
    from benchmarks._anytime_regret import best_known

    values: dict[str, list[float | None]] = {}
    for key, answer in journal.items():
        if key.seed == seed:
            values.setdefault(key.problem, []).append(answer.value)
    return best_known(values)


def _part(report: Report, first: int, points: list[dict[str, Any]], plan: list[str], journal: Journal) -> dict[str, Any]:
    for line in plan:
        report.note(f"  {line}")
    commits = sorted({answer.commit for answer in journal.values() if answer.commit})
    failed: dict[str, str] = {}
    for key, answer in journal.items():
        if answer.value is None and answer.why and key.unit != "race":
            failed.setdefault(name_of(key.placer), answer.why)
    notes = [f"No answer somewhere: {name}: {textwrap.shorten(why, 160)}" for name, why in sorted(failed.items())]
    return {"rows": report.rows[first:], "points": points, "plan": [*plan, *notes], "commits": commits}


def _command(chosen: argparse.Namespace) -> str:
    """Return the command that gives the same figures, without the folder of kept answers."""
    words = ["python", "-m", "benchmarks.anytime"]
    if chosen.quick:
        words.append("--quick")
    if chosen.seed:
        words += ["--seed", str(chosen.seed)]
    if chosen.minutes is not None:
        words += ["--minutes", f"{chosen.minutes:g}"]
    for part in chosen.part or ():
        words += ["--part", part]
    seconds = [f"{budget:g}" for budget in chosen.seconds or ()]
    for flag, some in (("--seconds", seconds), ("--placers", chosen.placers), ("--also", chosen.also)):
        words += [flag, *some] if some else []
    return shlex.join([*words, *(["--results", str(chosen.results)] if chosen.results else [])])


if __name__ == "__main__":
    main()
