"""Print results of searches and comparisons for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from placeit.core.units import percentage
from placeit.report import machine, text

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from placeit.optimizer.candidates import Candidate
    from placeit.optimizer.capacity import Service
    from placeit.optimizer.compare import Comparison
    from placeit.optimizer.result import Optimized, Unplanned
    from placeit.simulator.objectives.base import Objective

_REFERENCES_NOTE = "References are OpenVINO without placeit on these devices. They are not placements, and cannot be chosen."


__all__ = ["answer", "comparison", "fastest", "optimized"]


def comparison(console: Console, found: Comparison) -> None:
    """Print the fastest placement, a table of all placements, and the reasons of failures."""
    figures = {"fastest": fastest(found)}
    if (disturbed := machine.disturbed_rounds(found.disturbed, found.left_out, found.rounds)) is not None:
        figures["machine"] = disturbed
    if found.rate is not None:
        figures["rate"] = machine.at_rate(found.rate, found.candidates)
    text.facts(console, figures)
    console.print()
    candidates, singles = (*found.candidates, *found.references), found.singles
    rates = ["requests/s"] if found.objective.steady else []
    heads = ["placement", "devices (ops)", "segments", "simulated", "measured", *rates, "95 % interval", "p95", "inside"]
    heads += [f"speed-up over {single}" for single in singles]
    rows = [
        (
            one.name,
            _devices(one),
            str(one.segments),
            text.seconds(one.simulated_s),
            text.seconds(None if one.measured is None else one.measured.median),
            *([_rate(one)] if rates else []),
            text.interval(one.measured),
            text.seconds(None if one.measured is None else one.measured.p95),
            text.seconds(one.inner_s),
            *map(text.ratio, found.speedups(one).values()),
            text.error(one.output_error),
        )
        for one in candidates
    ]
    best = next((one.name for one in candidates if one.name in singles), None)
    spare = ["inside", "segments", "p95", "output error", "simulated"]
    spare += [f"speed-up over {single}" for single in singles if single != best]
    text.table(console, [*heads, "output error"], rows, left=2, spare=spare)
    text.show_failures(console, {one.name: one.failed for one in candidates})
    text.show_failures(console, {one.name: one.not_run for one in (*found.candidates, *found.references)}, title="not run")
    if found.references:
        text.paragraph(console, _REFERENCES_NOTE)
    text.show_unchecked(console, (one.output_error for one in candidates))
    if found.objective.note is not None:
        text.paragraph(console, f"Times are {found.objective.note}.")
    if found.interrupted:
        text.paragraph(console, "Ended by Ctrl-C: results so far.")
    if compiled := machine.compiling(found.compiling):
        text.paragraph(console, f"Compiled: {compiled}.")
    text.show_notes(console, found.cluster)


def fastest(found: Comparison) -> str:
    """Return a line with the fastest placement and its speed-up over the second fastest."""
    from placeit.measuring.incumbent import compared

    best, *others = (one for one in found.candidates if one.failed is None)
    line = f"{best.name}: {text.seconds(None if best.measured is None else best.measured.median)}"
    line += " per request" if found.objective.steady else ""
    ratio = compared(others[0].measured, best.measured) if others else None
    if ratio is not None:
        doubt = ", which may be chance" if ratio.ci_low <= 1 else ""
        line += f", {text.ratio(ratio)} times as fast as {others[0].name}{doubt}"
    failed = [one.name for one in found.candidates if one.failed is not None]
    return f"{line}; failed: {', '.join(failed)}" if failed else line


def optimized(
    console: Console,
    found: Optimized,
    path: Path | None,
    others: Mapping[str, Path | None] = MappingProxyType({}),
    points: Sequence[Path] = (),
    command: Sequence[str] = (),
) -> None:
    """Print the answer of a search, a table for each race, and other results.

    Args:
        console: the console to print to.
        found: the result.
        path: file of the placement; None if it was not written.
        others: other files, by their content, such as ``recording``; None for a file that was not written.
        points: files of the points of the Pareto front of latency and energy.
        command: suggested next command, as a list of words; empty for none.
    """
    answer, rest = _facts(found)
    answer |= {what: str(file) for what, file in {"placement": path, **others}.items() if file is not None}
    text.facts(console, answer | ({"next": command} if command else {}))
    console.print()
    _show_front(console, found, points)
    _show_candidates(console, found)
    _show_spending(console, found)
    console.print()
    text.facts(console, rest)
    text.show_notes(console, found.cluster)


def _show_candidates(console: Console, found: Optimized) -> None:
    """Print the candidates, with a table for each race, and the reasons why some were not measured."""
    best = found.best_single
    others = [candidate for candidate in found.candidates if candidate.placer == "single" and candidate is not best]
    singles = [*([] if best is None else [best]), *others]
    objective, modelled = found.objective, not found.objective.is_measured
    rates = ["requests/s"] if objective.steady else []
    heads = ["candidate (placer)", "devices (ops)", "segments", "simulated", "measured", *rates, "95 % interval", "inside"]
    by_times = ["joules modelled", "joules measured"] if objective.has_model else [f"{objective.name} by measured times"]
    heads += [f"{objective.name} simulated", *by_times] if modelled else []
    heads += [f"speed-up over {single.name}" for single in singles]
    heads += ["output error", "simulator off by"]

    def row(candidate: Candidate) -> list[str]:
        return [
            _name(candidate) + (" *" if candidate is found.chosen else ""),
            _devices(candidate),
            str(candidate.segments),
            text.seconds(candidate.simulated_s),
            text.seconds(None if candidate.measured is None else candidate.measured.median),
            *([_rate(candidate)] if rates else []),
            text.interval(candidate.measured),
            text.seconds(candidate.inner_s),
            *(_values(candidate, objective) if modelled else ()),
            *(_speedup(found, single, candidate) for single in singles),
            text.error(candidate.output_error),
            _simulator_error(candidate),
        ]

    sections: dict[str, list[list[str]]] = {}
    beside = [*(other.row for other in found.precisions), *(other.row for other in found.references)]
    for candidate in (*found.candidates, *beside):
        sections.setdefault(_section(found, candidate), []).append(row(candidate))
    spare = ["inside", "simulator off by", "output error", "segments", *(f"speed-up over {single.name}" for single in others)]
    spare += ["95 % interval", *(["simulated"] if modelled else [])]
    every = [cells for rows in sections.values() for cells in rows]
    shown = [i for i in range(len(heads)) if i < 3 or any(cells[i] != text.NOTHING for cells in every)]
    sections = {title: [[cells[i] for i in shown] for cells in rows] for title, rows in sections.items()}
    text.tables(console, [heads[i] for i in shown], sections, left=2, spare=spare)
    failed = {_name(one): one.failed for one in (*found.candidates, *beside)}
    text.show_failures(console, failed | {_name(one): one.failed for one in found.unplanned})
    text.show_failures(
        console, {_name(candidate): candidate.not_run for candidate in (*found.candidates, *beside)}, title="not run"
    )
    refused = {f"{_name(one)}, segment {s}": why for one in found.candidates for s, why in one.refused.items()}
    text.show_failures(console, refused, title="run op by op")
    text.show_unchecked(console, (candidate.output_error for candidate in (*found.candidates, *beside)))
    for candidate in found.candidates:
        if candidate.plain:
            note = f"{candidate.name} is a plain device: all core sets together, under their runtime without placeit."
            if "ort:" in candidate.name:
                note = f"{candidate.name} is plain ONNX Runtime, without placeit."
            if "inductor:" in candidate.name:
                note = f"{candidate.name} is the whole model, compiled by PyTorch's compiler Inductor for these cores."
            elif ":" in candidate.name and any("openvino:" in one.name for one in found.candidates):  # of a PyTorch model
                note = f"{candidate.name} is the whole model, converted for the runtime that its name states, on these cores."
            text.paragraph(console, note)
    for candidate in found.candidates:
        if candidate.twin is not None:
            how = "compiled by PyTorch's compiler Inductor" if candidate.name.endswith(", compiled") else "converted for it"
            text.paragraph(console, f"{candidate.name}: the segments of {candidate.twin}, {how}.")
    if found.references:
        text.paragraph(console, _REFERENCES_NOTE)
    console.print()


def _show_front(console: Console, found: Optimized, files: Sequence[Path]) -> None:
    """Print the Pareto front of latency and energy, if there is one, with the file of each point."""
    if found.pareto is None:
        return
    names = [file.name for file in files[: len(found.pareto)]] or [""] * len(found.pareto)
    rows = [
        (
            f"{number} *" if one.candidate.name == found.chosen.name else str(number),
            one.candidate.placement.ops_by_device,
            text.seconds(one.latency_s),
            text.amount(one.energy_j, "J", least=-3),
            one.latency_from if one.latency_from == one.energy_from else f"{one.latency_from}, energy {one.energy_from}",
            name,
        )
        for number, (one, name) in enumerate(zip(found.pareto, names, strict=True), 1)
    ]
    heads = ("Pareto front", "devices (ops)", "latency", "energy", "values are", "placement")
    text.table(console, heads, rows, left=2, spare=[] if files else ["placement"])
    named = any(one.candidate.name == found.chosen.name for one in found.pareto)
    lines = ["No placement that was found is better than one of these in latency or energy without being worse in the other."]
    lines += ["The answer is marked *." if named else f"The answer, {found.chosen.name}, is not one of them by these values."]
    lines += ["`placeit run` takes the file of any of them."] if files else []
    text.paragraph(console, " ".join(lines))
    console.print()


def _show_spending(console: Console, found: Optimized) -> None:
    unit = found.objective.unit
    roles = {"answer": "the answer", "start": "start of the search for the answer", None: ""}
    rows = [
        (
            one.what,
            ", ".join(filter(None, (roles[one.role], one.note))),
            text.duration(one.seconds),
            f"{one.proposed} ({one.new})" if one.placer else "",
            text.amount(one.simulated_value, unit, least=-3) if one.placer else "",
            text.amount(one.measured_value, unit, least=-3) if one.placer else "",
        )
        for one in found.spending
    ]
    rows.append(("all", "", text.duration(found.spent_s), "", "", ""))
    heads = ("time went into", "note", "time", "placements (new)", "best simulated", "best measured")
    text.table(console, heads, rows, left=2, spare=["placements (new)", "best simulated"])


def _section(found: Optimized, candidate: Candidate) -> str:
    """Return the title of a candidate's table. Each race has one, since times of different races are not comparable."""
    if candidate.failed is not None:
        return "failed"
    if candidate.race is None:
        if candidate.measured is None:
            return "not measured"
        if candidate.earlier:
            return "measured by an earlier search; times are not comparable with the others"
        return "run one after the other, because time was short; times are hardly comparable"
    race = found.races[candidate.race]
    earlier = ", earlier; times are not comparable with those above" if race is not found.races[-1] else ""
    return f"race {candidate.race + 1}: {race.what}, {race.rounds} round{'s' if race.rounds != 1 else ''}{earlier}"


def _facts(found: Optimized) -> tuple[dict[str, str | Sequence[str]], dict[str, str]]:
    """Return the answer of a search and other facts, by heading, without facts that were not measured."""
    errors, best, error = found.simulator_error, found.best_single, found.chosen.output_error
    described = [device.name for device in found.cluster.devices if device.described]
    costs = "by measured costs" if not described else f"by costs that are described for {', '.join(described)}"
    if len(described) == len(found.cluster):
        costs = "by the figures of the described devices"
    limits = ", ".join(f"{text.amount(held, 'B')} on {name}" for name, held in found.memory.items())
    decided = None if found.chosen.race is None else found.races[found.chosen.race]
    answer = {
        "chosen": f"{_name(found.chosen)}, marked * below",
        "machine": machine.disturbance(found.profiled),
        "why": found.reason,
        "speed-up": None
        if found.speedup is None or best is None or found.chosen is best
        else f"{text.ratio(found.speedup)} over {best.name}",
        "races": None if decided is None else machine.disturbed_rounds(decided.disturbed, decided.left_out, decided.rounds),
        "rate": None if found.rate is None else machine.at_rate(found.rate, [found.chosen]),
        **_service_facts(found.service),
        "output error": None if error is None else f"{text.error(error)} (relative to the largest output of the uncut model)",
    }
    rest = {
        "objective": None if found.objective.note is None else f"{found.objective.name}: {found.objective.note}",
        "energy": None if found.energy is None else str(found.energy),
        "precisions": "; ".join(_precisions(found)) or None,
        "references": "; ".join(_references(found)) or None,
        "lower bound": None
        if math.isnan(found.bound_s) or len(found.cluster) == 1
        else f"{text.seconds(found.bound_s)} on {', '.join(found.cluster.names)}, ignoring cut costs, {costs}",
        "simulator": None
        if errors is None
        else ", ".join(
            [
                f"mean error {text.percent(errors.get('mape'))}",
                *(f"{name.title()} {value:.3f}" for name in ("pearson", "spearman") if (value := errors.get(name)) is not None),
            ]
        ),
        "budget": f"{found.spent_s:.1f} s of {found.asked_s:g} s{', ended by Ctrl-C' if found.interrupted else ''}",
        "compiling": machine.compiling(found.compiling),
        "pinned": ", ".join(f"{ops} to {device}" for ops, device in found.pins.items()) or None,
        "memory": f"at most {limits}" if limits else None,
    }
    return (
        {name: line for name, line in answer.items() if line is not None},
        {name: line for name, line in rest.items() if line is not None},
    )


def answer(found: Optimized, path: Path | None) -> str:
    """Return a line with the chosen candidate, its value, its speed-up, and the file of the placement."""
    chosen, best, objective = found.chosen, found.best_single, found.objective
    values = [text.seconds(chosen.simulated_s), text.seconds(None if chosen.measured is None else chosen.measured.median)]
    if not objective.is_measured:
        values = _values(chosen, objective)
    value = next((one for one in reversed(values) if one != text.NOTHING), text.NOTHING)
    if chosen.measured is None:
        value += " (simulated)"
    elif objective.steady:
        value = f"{_rate(chosen)} requests/s"
    parts = [value, *([] if path is None else [str(path)])]
    if found.speedup is not None and best is not None and chosen is not best:
        parts.insert(1, f"speed-up {text.ratio(found.speedup)} over {best.name}")
    busy = "" if found.profiled is None or not found.profiled.disturbed else "; the machine was busy while costs were measured"
    return f"{chosen.name}: {', '.join(parts)}{busy}"


def _service_facts(service: Service | None) -> dict[str, str | None]:
    """Return the throughput of the answer, its bottlenecks, and latencies at the requested rate, by heading."""
    if service is None:
        return {}
    limits = list(dict.fromkeys(one.name for one in service.bottlenecks))
    by = f"; {', '.join(limits)} {'is' if len(limits) == 1 else 'are'} busy all the time then" if limits else ""
    how = "" if service.measured else ", in simulation"
    facts: dict[str, str | None] = {"capacity": f"{text.rate(service.capacity)} requests/s{how}{by}"}
    if service.in_flight is not None:
        facts["in flight"] = f"{service.in_flight} requests, each of which takes {text.seconds(service.latency)}{how}"
    if service.rate is None:
        return facts
    wanted = f"{text.rate(service.rate)} requests/s"
    facts["rate"] = f"{wanted} are served"
    if not service.sustained:
        facts["rate"] = (
            f"no placement that was found sustains {wanted}: this one serves {text.percent(service.relative)} of them, "
            f"{text.rate(service.capacity)} requests/s, and the longer they arrive the longer they wait"
        )
    for arrivals, load in service.load.items():
        facts[f"{arrivals} arrivals"] = (
            f"p50 {text.seconds(load.p50)}, p95 {text.seconds(load.p95)}, p99 {text.seconds(load.p99)}; "
            f"{load.mean_queue:.1f} waiting on average, {load.max_queued} at most (simulated, {load.requests} requests)"
        )
    return facts


def _precisions(found: Optimized) -> Iterator[str]:
    """Yield a line for each other precision: its time, and the ratio to the time in the requested precision."""
    for other in found.precisions:
        measured = other.row.measured
        if measured is None:
            yield f"{other.row.name} {'was not measured' if other.row.failed is None else 'failed, see above'}"
            continue
        share = "" if other.ratio is None else f", {text.ratio(other.ratio)} of the time of {other.row.of}"
        yield f"{other.row.name} takes {text.seconds(measured.median)}{share}; not a candidate"
    yield from found.without_precisions


def _references(found: Optimized) -> Iterator[str]:
    """Yield a line for each reference (OpenVINO without placeit): its time, and the ratio to the answer's time."""
    for one in found.references:
        if one.row.measured is not None:
            on = f", on {', '.join(one.row.used)}" if one.row.used else ""
            share = "" if one.ratio is None else f", {text.ratio(one.ratio)} of the time of the answer"
            yield f"{one.row.name}{on}: {text.seconds(one.row.measured.median)}{share}"


def _devices(candidate: Candidate) -> str:
    """Return the devices of a candidate with their numbers of ops; for a reference, the devices that OpenVINO used."""
    if candidate.reference is not None:
        return ", ".join(candidate.used) or text.NOTHING
    return candidate.placement.ops_by_device


def _name(candidate: Candidate | Unplanned) -> str:
    """Return a candidate's name, with its placer unless the name contains it, and whether it was a start placement."""
    given = getattr(candidate, "given", False)
    what = [candidate.placer, *(["start"] if given and candidate.placer != "start" else [])]
    note = ", ".join(word for word in what if word not in candidate.name)
    return f"{candidate.name} ({note})" if note else candidate.name


def _values(candidate: Candidate, objective: Objective) -> list[str]:
    """Return a candidate's simulated objective, and its objective by measured times; for energy, also by meters."""
    of_runs = [candidate.modelled, candidate.joules] if objective.has_model else [candidate.value]
    values = [candidate.simulated_value, *(None if value is None else value.median for value in of_runs)]
    return [text.amount(value, objective.unit, least=-3) for value in values]


def _speedup(found: Optimized, single: Candidate, candidate: Candidate) -> str:
    """Return the speed-up over a single device, if both were measured in the same race."""
    ratio = found.speedup_over(single, candidate)
    return text.NOTHING if ratio is None else f"{ratio.ratio:.2f}"


def _simulator_error(candidate: Candidate) -> str:
    if candidate.measured is None or candidate.simulated_s is None:
        return text.NOTHING
    return percentage(candidate.simulated_s / candidate.measured.median - 1, "+.1%")


def _rate(candidate: Candidate) -> str:
    return text.rate(None if candidate.measured is None else 1 / candidate.measured.median)
