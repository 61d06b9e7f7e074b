"""Text generation across devices: right tokens, the simulator's error, the time that a hop adds, and several texts at once."""

from __future__ import annotations

import functools
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._generation_rivals import NAMES, Files, in_segments, plain_steps, session_of
from benchmarks._harness import Args, Report
from benchmarks._models import progress, settled_race, two_cores
from examples.generate_text import INPUTS, generate, step_inputs
from placeit.core.errors import PlaceitError
from placeit.core.placement import Placement
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.measuring.statistics import faster
from placeit.optimizer.options import Candidates
from placeit.serving.sequence import Sequence as OpenSequence
from placeit.session import Session

__all__ = [
    "CLUSTERS",
    "CORE_AND_GPU",
    "SLOW_CORE",
    "TWO_CORES",
    "TWO_NODES",
    "at_once",
    "balanced",
    "clusters",
    "continued",
    "reference",
]

TWO_CORES, SLOW_CORE, TWO_NODES = "two cores", "a core and one 1.5 times as slow", "two nodes"
CORE_AND_GPU = "a core and an Intel GPU"
_STEPS, _PROFILE_S, _SEARCH_S = (256, 24), (60.0, 5.0), (120.0, 15.0)
"""Tokens, and seconds for measuring groups and for a search, in full and quick."""
_PROMPT = 32
_ROOM = 1.15
"""Memory for weights of each of two nodes: more than half of them, because both ends need the table of tokens."""
_TEXTS = 8
_TURN, _TURNS = 16, (30, 6)
"""Tokens between two turns, and turns, in full and quick."""


def balanced(session: Session) -> Placement:
    """Cut a profiled model into two segments that take the same time, one on each of two devices."""
    costs = session.costs.core.mean(1).cumsum()
    return in_segments(session, costs > costs[-1] / 2)


def reference(path: Path, prompt: Sequence[int], tokens: int, *, exact: bool = False) -> list[int]:
    """Return the tokens that plain OpenVINO generates with an uncut model; if ``exact``, with caches in float32."""
    options = {"INFERENCE_PRECISION_HINT": "f32"} | ({"KV_CACHE_PRECISION": "f32"} if exact else {})
    steps, _ = plain_steps(openvino_core().compile_model(path, "CPU", options))
    return generate(lambda inputs: {"logits": steps(inputs)[None, None]}, NAMES, prompt, tokens)[0]


def _as_run(files: Files, cluster: str, folder: Path) -> Files:
    """Return the decoder; for a GPU, a version whose caches have the type of keys and values on the CPU as well."""
    if cluster != CORE_AND_GPU:
        return files
    model = openvino_core().read_model(files.stateful)
    model.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])
    import_openvino().serialize(model, str(folder / "exact.xml"), str(folder / "exact.bin"))
    return replace(files, stateful=folder / "exact.xml")


def clusters(files: Files, args: Args, report: Report) -> None:
    """Generate a text on each cluster; compare its tokens with the uncut model's, and its time with the simulated time."""
    prompt = np.random.default_rng(args.seed).integers(0, files.decoder.vocabulary, _PROMPT).tolist()
    steps = _STEPS[args.quick]
    wanted = functools.cache(lambda path: reference(path, prompt, steps))
    for name, open_cluster in CLUSTERS.items():
        if name == CORE_AND_GPU and _gpu() is None:
            report.note(f"  {name}: left out, as OpenVINO finds no GPU")
            continue
        progress(f"{steps} tokens on {name}")
        try:
            with tempfile.TemporaryDirectory() as folder:
                used = _as_run(files, name, Path(folder))
                with open_cluster(used, steps) as session:
                    session.profile(budget_s=_PROFILE_S[args.quick], progress=progress)
                    _cluster(name, session, _placed(session, name, args), prompt, wanted(used.stateful), report)
        except (PlaceitError, ImportError) as error:
            report.note(f"  {name}: left out, as it failed: {error}")
            report.claim(f"{name}: tokens that differ from the uncut model's, of {steps}", None, "tokens", at_most=0)


def _placed(session: Session, name: str, args: Args) -> Placement:
    """Return both halves of the model, or, if memory is short, the fastest placement that fits."""
    if name != TWO_NODES:
        return balanced(session)
    found = session.optimize(budget=_SEARCH_S[args.quick], candidates=Candidates(plain=False), seed=args.seed)
    return found.placement


def _cluster(
    name: str, session: Session, placement: Placement, prompt: Sequence[int], wanted: Sequence[int], report: Report
) -> None:
    plan = session.plan_of(placement)
    with session.serve(placement) as server:
        with server.sequence() as sequence:  # the first request takes longer
            generate(sequence.run, NAMES, prompt, 3)
        with server.sequence() as sequence:
            found, seconds = generate(sequence.run, NAMES, prompt, len(wanted))
        (executor,) = server.executors
        in_segments_s = float(executor.segment_seconds().sum())
    devices = [segment.device for segment in plan.segments if not segment.passthrough]
    hops = sum(one != other for one, other in itertools.pairwise(devices))
    hops += 2 * (name == TWO_NODES)  # from this process to the first node, and back from the last
    token, simulated = float(np.median(seconds[1:])), plan.schedule.makespan
    over = (token - in_segments_s) / max(1, hops)
    report.row(
        cluster=name,
        devices=", ".join(f"{device} {ops}" for device, ops in placement.counts().items()),
        segments=len(devices),
        hops=hops,
        first_token_ms=seconds[0] * 1e3,
        token_ms=token * 1e3,
        simulated_ms=simulated * 1e3,
        in_segments_ms=in_segments_s * 1e3,
        over_per_hop_ms=over * 1e3,
    )
    differ = sum(one != other for one, other in zip(found, wanted, strict=True))
    report.claim(f"{name}: tokens that differ from the uncut model's, of {len(wanted)}", differ, "tokens", at_most=0)
    off = None if name == CORE_AND_GPU else 15  # an emulated GPU shares the core
    report.claim(f"{name}: simulated time per token off by", abs(simulated / token - 1) * 100, "%", at_most=off)
    report.claim(f"{name}: overhead per hop and token", over * 1e3, "ms", at_most=1.5 if name == TWO_NODES else None)


@contextmanager
def _two_cores(files: Files, steps: int) -> Iterator[Session]:
    with session_of(files.stateful, [f"CPU@{core}" for core in two_cores()], _PROMPT, steps, names=files.names) as session:
        yield session


@contextmanager
def _slow_core(files: Files, steps: int) -> Iterator[Session]:
    first, second = two_cores()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(f"devices:\n  fast: {{runs_on: CPU@{first}}}\n  slow: {{runs_on: CPU@{second}, slowdown: 1.5}}\n")
        with session_of(files.stateful, path, _PROMPT, steps, names=files.names) as session:
            yield session


def _gpu() -> str | None:
    return next((name for name in openvino_core().available_devices if name.split(".")[0] == "GPU"), None)


@contextmanager
def _core_and_gpu(files: Files, steps: int) -> Iterator[Session]:
    with session_of(files.stateful, [f"CPU@{two_cores()[0]}", str(_gpu())], _PROMPT, steps) as session:
        yield session


@contextmanager
def _two_nodes(files: Files, steps: int) -> Iterator[Session]:
    """Open nodes on this machine with memory for little more than half of the model each, and for the states of all texts."""
    from placeit.devices.nodes import connection, local

    nodes = local.names(2)
    devices = [f"{node}/CPU@{core}" for node, core in zip(nodes, two_cores(), strict=True)]
    states = _TEXTS * (_PROMPT + steps) * files.token_bytes
    memory = dict.fromkeys(devices, (files.weight_bytes + files.table_bytes) / 2 * _ROOM + states)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.json"
        ray = local.start(nodes, file)
        try:
            connection.connect(ray.address, token=ray.token)
            try:
                with session_of(files.stateful, devices, _PROMPT, steps, memory=memory, names=files.names) as session:
                    yield session
            finally:
                connection.disconnect()
        finally:
            ray.stop(file)


CLUSTERS: Mapping[str, Callable[[Files, int], Any]] = {
    TWO_CORES: _two_cores,
    SLOW_CORE: _slow_core,
    CORE_AND_GPU: _core_and_gpu,
    TWO_NODES: _two_nodes,
}


def continued(sequence: OpenSequence, prompt: Sequence[int], tokens: int) -> Future[list[int]]:
    """Continue a prompt by the most likely tokens, each chosen on the server's thread, as the server of texts does it."""
    found, done = list[int](), Future[list[int]]()

    def step(new: Sequence[int], past: int) -> None:
        answer = sequence.submit(step_inputs(INPUTS, new, past))
        answer.add_done_callback(lambda ended: go_on(ended, past + len(new)))

    def go_on(ended: Future[Any], past: int) -> None:
        try:
            found.append(int(ended.result()["logits"][0, -1].argmax()))
            if len(found) < tokens:
                step(found[-1:], past)
            else:
                done.set_result(found)
        except PlaceitError as error:
            done.set_exception(error)

    step(prompt, 0)
    return done


def at_once(files: Files, args: Args, report: Report) -> None:
    """Generate one text and eight at once over two equal devices, in turns of some tokens; steps of the texts are joined."""
    random = np.random.default_rng(args.seed)
    prompts = random.integers(0, files.decoder.vocabulary, (_TEXTS, _PROMPT)).tolist()
    for name in (TWO_CORES, TWO_NODES):
        if name in CLUSTERS:
            exact = name == TWO_CORES  # nodes keep caches in the plugin's 8 bits
            wanted = [reference(files.stateful, prompt, _TURN, exact=exact) for prompt in prompts]
            progress(f"{_TEXTS} texts on {name}")
            try:
                with CLUSTERS[name](files.for_texts, _TURN) as session:
                    session.profile(budget_s=_PROFILE_S[args.quick], progress=progress)
                    _at_once(name, session, prompts, wanted, args, report)
            except (PlaceitError, ImportError) as error:
                report.note(f"  {name}: left out, as it failed: {error}")
                report.claim(f"{_TEXTS} texts at once on {name}: tokens per second over one text's", None, "", at_least=1.7)


def _at_once(
    cluster: str,
    session: Session,
    prompts: Sequence[Sequence[int]],
    wanted: Sequence[Sequence[int]],
    args: Args,
    report: Report,
) -> None:
    differ = set[int]()
    with ExitStack() as stack:
        # a search does not count the states of texts: it may leave no memory for them on a node
        server = stack.enter_context(session.serve(balanced(session)))
        sequences = [stack.enter_context(server.sequence()) for _ in prompts]
        for why in {stepping.why for stepping in server.stepping} - {None}:
            report.note(f"  {cluster}: steps are not joined, as {why}")

        def text(number: int) -> Future[list[int]]:
            sequences[number].reset()
            return continued(sequences[number], prompts[number], _TURN)

        def seconds_per_token(texts: int) -> float:
            begin = time.perf_counter()
            found = [future.result() for future in [text(number) for number in range(texts)]]
            taken = time.perf_counter() - begin
            differ.update(number for number, tokens in enumerate(found) if tokens != wanted[number])
            return taken / (texts * _TURN)

        timers = {f"{texts} at once": lambda texts=texts: seconds_per_token(texts) for texts in (1, _TEXTS)}
        results = settled_race(timers, rounds=_TURNS[args.quick], seed=args.seed, blocks=False)
        (executor,) = server.executors
        for name, timer in timers.items():
            before = Counter(server.stats().steps)
            timer()
            measured, busy = results[name], executor.segment_seconds(last=True)
            steps = Counter(server.stats().steps) - before
            report.row(
                texts=name,
                cluster=cluster,
                tokens_per_second=1 / measured.median,
                low=1 / measured.ci_high,
                high=1 / measured.ci_low,
                longest_segment_ms=float(busy.max()) * 1e3,
                in_segments_ms=float(busy.sum()) * 1e3,
                texts_per_step=sum(texts * runs for texts, runs in steps.items()) / steps.total() if steps else None,
            )
    one, several = results.values()
    ratio = faster(one, several)
    what = f"{_TEXTS} texts at once on {cluster}"
    report.claim(f"{what}: tokens per second over one text's, low end", ratio.ci_low, "")
    report.claim(f"{what}: tokens per second over one text's", ratio.ratio, "", at_least=1.7)
    report.claim(f"{what}: texts that differ from the uncut model's", len(differ), "texts", at_most=0)
