"""Tables of regrets and the conclusion, printed and as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._anytime_placers import is_learned, training_seconds
from benchmarks._anytime_regret import Interval, front, learning_pays, mean_interval
from benchmarks._harness import Report
from benchmarks._results import table
from placeit.core.files import write_text

__all__ = ["ALL", "Table", "tell", "write_results"]

ALL = "all"
"""The problems of all families together."""


@dataclass(frozen=True, eq=False)
class Table:
    """Regrets of placers on some problems after different budgets.

    Attributes:
        part: ``simulated`` or ``measured``.
        unit: of the budgets: ``seconds`` or ``evaluations``.
        problems: name of the family.
        budgets: ascending.
        regrets: by budget, placer and problem; only problems for which every placer of the table has been tried.
        counts: by budget, the number of problems on which all placers were tried.
        search: the search that learning is compared with.
    """

    part: str
    unit: str
    problems: str
    budgets: Sequence[float]
    regrets: Mapping[float, Mapping[str, Mapping[str, float]]]
    counts: Mapping[float, int]
    search: str

    @classmethod
    def of(
        cls,
        part: str,
        unit: str,
        problems: str,
        budgets: Sequence[float],
        values: Mapping[str, Mapping[float, Mapping[str, float | None]]],
        best: Mapping[str, float],
        search: str,
    ) -> Table:
        """Make a table from values by placer, budget and problem, of the problems that count for every placer."""
        asked = {placer: some for placer, some in values.items() if any(some.values())}
        regrets: dict[float, dict[str, dict[str, float]]] = {}
        counts: dict[float, int] = {}
        for budget in budgets:
            decided = [set(some.get(budget, {})) for some in asked.values()]
            common = sorted(set.intersection(*decided) & set(best)) if decided else []
            counts[budget] = len(common)
            regrets[budget] = {
                placer: {p: v / best[p] - 1 for p in common if (v := some[budget][p]) is not None}
                for placer, some in asked.items()
                if common
            }
        return cls(part, unit, problems, budgets, regrets, counts, search)


def tell(tables: Iterable[Table], report: Report, seed: int) -> list[dict[str, Any]]:
    """Add the rows of all tables and of the conclusions to a report; return every mean with its interval."""
    points: list[dict[str, Any]] = []
    tables = list(tables)
    for each in tables:
        points += _regret_rows(each, report, seed)
    for unit in dict.fromkeys(each.unit for each in tables):
        some = [each for each in tables if each.unit == unit]
        pays = [paid for each in some for paid in _decision_rows(each, report, seed)]
        named = {each.part for each in some}
        if pays:
            report.claim(
                f"{', '.join(sorted(named))}: share of families and numbers of {unit} where learning pays",
                sum(pays) / len(pays),
                "",
            )
    return points


def _regret_rows(table: Table, report: Report, seed: int) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    placers = list(dict.fromkeys(placer for some in table.regrets.values() for placer in some))
    cells: dict[str, dict[float, Interval]] = {}
    for placer in placers:
        cells[placer] = {
            budget: mean_interval(list(found.values()), seed)
            for budget in table.budgets
            if (found := table.regrets[budget].get(placer))
        }
    used = [budget for budget in table.budgets if table.counts[budget]]

    def order(placer: str) -> tuple[int, float]:
        complete = [budget for budget in used if budget in cells[placer]]
        return -len(complete), cells[placer][complete[-1]].mean if complete else 0.0

    for placer in sorted(placers, key=order):
        learned = is_learned(placer)
        columns = {_after(budget, table.unit): _cell(cells[placer].get(budget), table.counts[budget]) for budget in used}
        trained = training_seconds(placer) if learned else None
        report.row(part=table.part, problems=table.problems, placer=placer, learns=learned, trained_before_s=trained, **columns)
        for budget, interval in cells[placer].items():
            points.append(
                {
                    "part": table.part,
                    "problems": table.problems,
                    "unit": table.unit,
                    "placer": placer,
                    "budget": budget,
                    "regret": interval.mean,
                    "low": interval.low,
                    "high": interval.high,
                    "count": interval.count,
                    "of": table.counts[budget],
                }
            )
    return points


def _decision_rows(table: Table, report: Report, seed: int) -> list[bool]:
    """Add the front at each budget, and whether a placer that learns beats the search; return the latter."""
    pays = []
    for budget in table.budgets:
        regrets = table.regrets[budget]
        if not table.counts[budget]:
            continue
        learned = [placer for placer in regrets if is_learned(placer)]
        found = learning_pays(regrets, learned, table.search, seed)
        report.row(
            decision=f"{table.part}, {table.problems}",
            after=f"{budget:g} {table.unit}",
            count=table.counts[budget],
            front=", ".join(front(regrets, seed)),
            best_learned=None if found is None else found.learned,
            its_regret_less_that_of=table.search,
            points=None if found is None else _cell(found.difference, found.difference.count),
            learning_pays=None if found is None else found.pays,
        )
        if found is not None and found.pays is not None:
            pays.append(found.pays)
    return pays


def _after(budget: float, unit: str) -> str:
    return f"{budget:g} {'s' if unit == 'seconds' else 'evals'}"


def _cell(interval: Interval | None, of: int) -> str | None:
    """Return a mean in percent with its interval, and the number of problems if it is not all."""
    if interval is None:
        return None
    text = f"{100 * interval.mean:.1f}"
    if interval.low is not None and interval.high is not None:
        text += f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return text if interval.count == of else f"{text} ({interval.count} of {of})"


def write_results(folder: Path, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``report.json`` and ``report.md`` of some parts. Parts that were not run stay as they are in the folder.

    Args:
        folder: created if it does not exist.
        parts: by name, each with its origin (``command``, ``commits``, ``seed``, ``machine``, ``note``, ``plan``) and its
            ``rows`` and ``claims``; of ``points``, which ``--json`` prints, the rows have the rounded values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    before = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    merged = before | {name: {kind: of for kind, of in part.items() if kind != "points"} for name, part in parts.items()}
    write_text(path, json.dumps({"benchmark": "anytime", "parts": merged}, indent=1, allow_nan=False) + "\n")
    write_text(folder / "report.md", _text_of(merged))


def _text_of(parts: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "# Placers against time and evaluations",
        "",
        "Regret in percent: by how much placements exceed the best known ones in the mean, with 95 % bootstrap intervals over",
        "problems.",
        "[anytime.md](../../anytime.md) says how to read it; [report.json](report.json) has the versions of all libraries.",
        "",
    ]
    for name, part in parts.items():
        machine = part["machine"]
        lines += [
            f"## {name.capitalize()}",
            "",
            f"    {part['command']}",
            "",
            f"Commits {', '.join(part['commits']) or 'unknown'}; seed {part['seed']}; {machine['cpu']}, "
            f"{machine['cores']} cores, "
            f"Python {machine['python']}, torch {machine['libraries'].get('torch')}. {part['note']}".rstrip(),
            "",
            *(f"- {line}" for line in part["plan"]),
            "",
        ]
        rows = list(part["rows"])
        while rows:
            same = next((i for i, row in enumerate(rows) if _kind(row) != _kind(rows[0])), len(rows))
            lines += [f"### {_title(rows[0])}", "", *table([_body(row) for row in rows[:same]])]
            rows = rows[same:]
    return "\n".join(lines).rstrip() + "\n"


def _kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return ("decision", "decision" in row) if "decision" in row else (row.get("problems"), *row)


def _title(row: Mapping[str, Any]) -> str:
    if "decision" in row:
        return "Decision"
    return f"{row['problems']}, by {'seconds' if any(name.endswith(' s') for name in row) else 'evaluations'}"


def _body(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("part", "problems")}
