"""``placeit optimize``: find the fastest placement by measuring."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from placeit.cli.command import exit_code
from placeit.cli.options import CheckedOptions, SeedOption, cost_cache
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.recordings import files_of
from placeit.cli.terminal import Output, Terminal
from placeit.cli.texts import TOKENS, optimize_tokens
from placeit.cli.values import check_placers, complete_agents, complete_objectives, complete_placers, duration, minimised
from placeit.cli.workload import is_workload, only_rate, optimize_workload
from placeit.core.errors import PlaceitError, UsageError
from placeit.core.files import own_descriptor
from placeit.optimizer.portfolio import DEFAULT_PLACERS, MAX_POINTS
from placeit.report import as_json, as_text

__all__ = ["EXAMPLES", "next_command", "optimize", "policy_placer"]

_log = logging.getLogger("placeit")
_BUDGET_S, _LEARNING_S = 60.0, 120.0  # seconds of a search, and of one in which a policy learns

EXAMPLES = """\b
Examples:
  placeit optimize model.onnx --devices CPU@0,CPU@1
  placeit optimize model.onnx --budget 20s --output placement.json --page report.html
  placeit optimize model.onnx --inputs x.npz --live
  placeit optimize model.onnx --devices cluster.yaml --placer heft --placer annealing:evaluations=200000
  placeit optimize model.onnx -d cluster.yaml --policy doppler --resume search.jsonl
  placeit optimize model.onnx --devices cluster.yaml --objective energy
  placeit optimize model.onnx --devices cluster.yaml --pareto --output best.json
  placeit optimize model.onnx -d CPU@0,CPU@1 --rate 20
  placeit optimize model.onnx -d CPU@0,CPU@1 --objective throughput --rate 40
  placeit optimize model.onnx -d CPU@0,CPU@1 --objective throughput --in-flight 8
  placeit optimize model.onnx --devices CPU@0,GPU.0 --pin 'conv1*=CPU@0'
  placeit optimize model.onnx --devices CPU@0,CPU@1 --memory CPU@0=2GB
  placeit optimize FOLDER --context 2048 --texts 8 --devices CPU@0,CPU@1
  placeit optimize FOLDER --context 2048 --texts 8 --devices CPU@0,CPU@1 --objective tokens
  placeit optimize model.onnx --start placement.json --output better.json
  placeit optimize model.onnx --budget 10m --resume search.jsonl
  placeit optimize model.onnx --devices CPU --compare-precisions
  placeit optimize workload.yaml --devices CPU@0,CPU@1
  placeit optimize placed.yaml --start placed.yaml --rate detector=30 --predict
"""


def optimize(
    *,
    placer: Annotated[
        list[str] | None,
        typer.Option(
            "--placer",
            metavar="NAME[:OPTION=VALUE,...]",
            help="Placer to use, or module:Class; repeatable. Default: those that `placeit placers` marks *.",
            autocompletion=complete_placers,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="AGENT[:OPTION=VALUE,...]",
            help="Also train a policy on this model, in simulation and then by runs: doppler, hsdag. With --resume, it is kept "
            "beside the file and goes on learning.",
            autocompletion=complete_agents,
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="NAME",
            help=f"{minimised()}; or {TOKENS}, to generate --texts of a decoder with the most tokens per second.",
            autocompletion=complete_objectives,
        ),
    ] = "latency",
    rate: Annotated[
        list[str] | None,
        typer.Option(
            "--rate",
            metavar="[NAME=]PER_SECOND",
            help="Arrival rate. For latency: the pace at which runs are measured. For throughput: also report the share of "
            "requests that is served, and their latency. For a workload: rate of a model, instead of the file's; repeatable.",
        ),
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--in-flight",
            metavar="N",
            min=1,
            help="For throughput: requests in flight. Default: the fewest that reach 95 % of a placement's throughput.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            parser=duration,
            help="Time limit: 90, 90s, 2m, 1h30m; default: 60s, and 2m with --policy.",
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            "--pin", metavar="PATTERN=DEVICE", help="Device of the ops whose names match, as in 'conv1*=CPU@0'; repeatable."
        ),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory", metavar="DEVICE=SIZE", help="Memory limit for weights and states, as in CPU@0=2GB; repeatable."
        ),
    ] = None,
    texts: Annotated[
        int,
        typer.Option(
            "--texts", metavar="N", min=1, help="Texts of a decoder's --context whose states have to fit beside the weights."
        ),
    ] = 1,
    start: Annotated[
        list[Path] | None,
        typer.Option(
            "--start",
            metavar="FILE",
            help="Placement on the same devices, or placed workload, to measure and to start from; repeatable.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Store measurements in a file, and continue from those already in it."),
    ] = None,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the placement; default: MODEL.placement.json."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FILE", help="Write the search and, after it, a few runs of the answer to a recording (JSON)."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page", metavar="FILE", help="Write the search and a few runs of the answer as a page for a browser (.html)."
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="On a terminal, show the best so far, what is measured, what is predicted, and the time left."
        ),
    ] = False,
    compare_precisions: Annotated[
        bool, typer.Option("--compare-precisions", help="Also measure single devices in another precision (bf16, f16 or f32).")
    ] = False,
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto", help="Also list the placements that trade latency for energy, and write each beside the answer."
        ),
    ] = False,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict", help="Do not measure a workload's models together; the prediction decides. For devices that serve."
        ),
    ] = False,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Find the fastest placement by measuring.

    Candidates are each single-device placement, the whole CPU as its runtime uses it by itself (if devices are parts of it),
    the placers' proposals, and the results of a search among plans. They are measured against each other; if no placement on
    several devices is faster than the best single device, or better by another objective, that device is the answer. For
    throughput, many requests are in flight, and groups of devices that each serve whole requests (replicas) and OpenVINO's
    throughput mode are candidates, too. Energy is measured if every device has a meter, else computed by a power model from
    measured times. The answer is written to a file, by default beside the model. Ctrl-C ends the search and keeps the best
    placement so far. A candidate that fails, or has wrong outputs, is excluded; the table says why.

    With --objective tokens, --texts of a decoder's --context are generated at once, each half prompt and half answer. The
    most promising placements, and sizes of the chunks in which prompts are read, take turns; the file keeps both.

    A workload (.yaml) in place of the model names several models, with the rates of their requests and limits on their
    latencies. They are placed together, so that all limits are kept while all of them are served.
    """
    if is_workload(options.model):
        workload_options: dict[str, Any] = {"memory": memory or (), "start": start or (), "rates": rate or ()}
        budget = _BUDGET_S if budget is None else budget
        return optimize_workload(options, output, budget, predict=predict, seed=seed, terminal=terminal, **workload_options)
    if predict:
        raise UsageError(f"--predict is about workloads, and {options.model} is one model: leave it out.")
    if objective == TOKENS:
        limits: dict[str, Any] = {"pin": pin or (), "memory": memory or (), "texts": texts, "placer": placer or ()}
        limits |= {"start": start or (), "resume": resume, "record": record, "page": page}
        return optimize_tokens(options, output, budget or _BUDGET_S, seed=seed, terminal=terminal, **limits)
    single_rate = only_rate(rate)
    path = options.model.parent / f"{options.model.name}.placement.json" if output is None else output
    no_folder = output is None and not path.parent.is_dir()  # then the error is that the model does not exist
    points = (
        [path.with_name(f"{path.stem}.point-{number}{path.suffix}") for number in range(1, MAX_POINTS + 1)] if pareto else []
    )
    outputs = [] if no_folder else [path, *points]
    check_outputs(*outputs, record, page=page, inputs=[*options.files(), *named_files(placer), *(start or ()), resume])
    # imported only now, because it takes a second
    from placeit.devices.caps import parse_caps
    from placeit.devices.clusterfile import discover
    from placeit.optimizer.options import Budget, Candidates
    from placeit.planning.pins import parse_pins
    from placeit.report.page import check_page
    from placeit.report.searching import SearchView
    from placeit.session import optimize as find
    from placeit.simulator.objectives.registry import check_objective, objective_kind
    from placeit.workbench.options import Constraints

    check_objective(objective)
    if page is not None:
        check_page()
    if budget is None:
        budget = _BUDGET_S if policy is None else _LEARNING_S
    if policy is not None:
        placer = [*(placer or DEFAULT_PLACERS), policy_placer(policy, resume)]
    check_placers(placer or ())
    constraints = Constraints(parse_pins(pin or ()), parse_caps(memory or ()), options.max_groups, options.tolerance, texts)
    cluster = discover(options.reach(), precision=options.precision.value)
    model = options.load_with_inputs()
    display = terminal.search(budget, objective_kind(objective).unit) if live else terminal.progress()
    with display as progress:
        found = find(
            model,
            cluster,
            objective=objective,
            budget=Budget(budget, resume),
            candidates=Candidates(placer or None, start, compare_precisions=compare_precisions, pareto=pareto),
            seed=seed,
            rate=single_rate,
            in_flight=in_flight,
            progress=progress,
            on_event=progress.event if isinstance(progress, SearchView) else None,
            precision=options.precision.value,
            constraints=constraints,
            cache=cost_cache(options.no_cache),
        )

    interrupted, files = found.interrupted, [OutputFile(path, "the placement", lambda: found.save(path))]
    written: dict[str, Any] = as_json.files({"placement": path, "recording": record, "page": page})
    if found.pareto is not None:
        files += [
            OutputFile(file, "a point", partial(point.save, file)) for point, file in zip(found.pareto, points, strict=False)
        ]
        named = zip(found.pareto, points, strict=False)
        written["pareto"] = [point.to_dict() | {"placement_file": str(file)} for point, file in named]
    if record is not None or page is not None:
        try:
            recorded = found.described if interrupted else found.recorded
        except KeyboardInterrupt:  # the answer is there
            interrupted, recorded = True, found.described
        except PlaceitError as error:
            _log.warning("The search is recorded without runs of its answer: %s", error)
            recorded = found.described
        files += files_of(replace(recorded, search=as_json.search(found) | written), {"recording": record, "page": page})
    command: list[str] = []
    if own_descriptor(path) is None:
        command = next_command("explain" if any(device.described for device in cluster.devices) else "run", options, path)
    others = {"recording": record, "page": page}
    show = partial(as_text.optimized, found=found, path=path, others=others, points=points, command=command)
    code = exit_code(interrupted=interrupted)
    return Output(found.to_dict() | written, show, code, files, as_text.answer(found, path))


def policy_placer(agent: str, resume: Path | None) -> str:
    """Return the name, with options, of the placer that trains an agent and keeps its policy beside the file to resume from."""
    state = "" if resume is None else f",state={resume}.{agent.partition(':')[0]}.safetensors"
    return f"policy:agent={agent}{state}"


def next_command(name: str, options: CheckedOptions, placement: Path) -> list[str]:
    """Return the words of a command for the placement that was found, with the options that its file does not contain."""
    from placeit.devices.clusterfile import names_file

    words = ["placeit", name, str(options.model), "-p", str(placement)]
    if options.devices is not None and names_file(options.devices):
        words += ["-d", options.devices]
    words += [] if options.ray_address is None else ["--ray-address", options.ray_address]
    if options.model.suffix.lower() not in (".onnx", ".xml"):
        words += [word for shape in options.input_shape or () for word in ("--input-shape", shape)]
        words += [] if options.batch is None else ["--batch", str(options.batch)]
        words += ["--trust"] if options.trust else []
    return words
