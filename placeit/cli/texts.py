"""The objective ``tokens`` on the command line: tokens per second of several texts at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from placeit.cli.command import exit_code, was_given
from placeit.cli.options import CheckedOptions, cost_cache
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.recordings import files_of
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import check_placers
from placeit.core.errors import UsageError
from placeit.core.units import percentage
from placeit.report import as_json, text
from placeit.report.texts import HEADS, NOTE, settings_rows

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.text.optimized import TextsOptimized

__all__ = ["TOKENS", "optimize_tokens"]

TOKENS = "tokens"
"""Name of the objective."""
_OF_SINGLE_REQUESTS = ("policy", "rate", "in_flight", "live", "compare_precisions", "pareto", "predict")
"""Options of 'placeit optimize' that the objective does not take."""


def optimize_tokens(
    options: CheckedOptions,
    output: Path | None,
    budget: float,
    *,
    pin: Sequence[str],
    memory: Sequence[str],
    texts: int,
    placer: Sequence[str],
    start: Sequence[Path],
    resume: Path | None,
    record: Path | None,
    page: Path | None,
    seed: int,
    terminal: Terminal,
) -> Output:
    """Find the placement that generates texts fastest; see :func:`placeit.cli.optimize.optimize`."""
    from placeit.devices.caps import parse_caps
    from placeit.devices.clusterfile import names_file
    from placeit.optimizer.options import Budget, Candidates
    from placeit.planning.pins import parse_pins
    from placeit.session import Session
    from placeit.text.optimizing import optimize_texts
    from placeit.workbench.options import Constraints

    if given := [f"--{name.replace('_', '-')}" for name in _OF_SINGLE_REQUESTS if was_given(name)]:
        raise UsageError(f"{given[0]} is not for the objective '{TOKENS}': leave it out.")
    path = output or options.model.parent / f"{options.model.name}.placement.json"
    inputs = [*options.files(), *named_files(placer), *start, resume]
    check_outputs(*([path] if path.parent.is_dir() else []), record, page=page, inputs=inputs)
    check_placers(placer)
    if page is not None:
        from placeit.report.page import check_page

        check_page()
    constraints = Constraints(parse_pins(pin), parse_caps(memory), options.max_groups, options.tolerance, texts)
    with (
        terminal.progress() as progress,
        Session(
            options.load_with_inputs(),
            options.reach(),
            precision=options.precision.value,
            constraints=constraints,
            cache=cost_cache(options.no_cache),
        ) as session,
    ):
        found = optimize_texts(
            session,
            budget=Budget(budget, resume),
            candidates=Candidates(placer or None, start),
            seed=seed,
            progress=progress,
        )
        wanted = {"recording": record, "page": page}
        recorded = replace(session.recording(), tuning=found.to_dict()) if record or page else None
    files = [OutputFile(path, "the placement", lambda: found.placement.save(path))]
    files += [] if recorded is None else files_of(recorded, wanted)
    data = {"schema": "placeit.tokens/1", **found.to_dict(), **as_json.files({"placement": path, **wanted})}
    command = ["placeit", "generate-text", str(options.model), "Once upon a time", "-p", str(path)]
    if options.devices is not None and names_file(options.devices):
        command += ["-d", options.devices]
    shown = partial(_show, found=found, files={"placement": path, **wanted}, command=command)
    answer = f"{found.chosen.name}: {found.reason}"
    return Output(data, shown, exit_code(interrupted=found.interrupted), files, answer)


def _show(console: Console, found: TextsOptimized, files: Mapping[str, Path | None], command: Sequence[str]) -> None:
    facts: dict[str, str | Sequence[str]] = {
        "texts": f"{found.texts} at once, with prompts of {found.prompt} tokens and answers of {found.tokens}",
        "chosen": found.chosen.name,
        "why": found.reason,
        **{what: str(path) for what, path in files.items() if path is not None},
        "next": command,
    }
    text.facts(console, facts)
    console.print()
    spare = ["failed"] if all(one.failed is None for one in found.settings) else []
    text.table(console, HEADS, settings_rows(found.to_dict()), spare=spare)
    text.paragraph(console, NOTE)
    if found.error is not None:
        text.paragraph(
            console, f"Predicted tokens per second differ from measured ones by {percentage(found.error)} in the median."
        )
