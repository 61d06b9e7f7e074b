"""Several texts at once beside the continuous batching of ``openvino_genai``, and a long prompt on one device and on two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import TypeAlias

import numpy as np

from benchmarks._generation_devices import balanced, continued, reference
from benchmarks._generation_rivals import PRECISION, Files, greedy, in_segments, session_of
from benchmarks._harness import Args, Report
from benchmarks._models import progress, settled_race, two_cores
from examples.generate_text import INPUTS, step_inputs
from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.measuring.statistics import faster
from placeit.serving.sequence import Sequence as OpenSequence
from placeit.session import Session
from placeit.text.optimizing import optimize_texts
from placeit.workbench.options import Constraints, Inputs

__all__ = ["batches", "long_prompt", "searched"]

_TEXTS = (8, 16)
_PROMPT, _TOKENS, _CONTEXT = 32, 32, 256
_TURNS, _PROFILE_S = (12, 3), (60.0, 5.0)
"""Turns, and seconds for measuring groups, in full and quick."""
_SEARCH_S = (240.0, 15.0)
"""Seconds of a search, in full and quick."""
_LONG, _CHUNK = (1024, 64), (128, 32)
"""Tokens of a long prompt and of its chunks, in full and quick."""
_LEAST = {1: 1.0, 2: 0.9}
"""Least tokens per second, relative to ``openvino_genai`` on as many cores."""

_PLAIN = "plain OpenVINO, a core each"
"""A share of the texts in one batch on one core: each of two cores with half of the model takes two halves of such a step."""

_Way: TypeAlias = Callable[[Sequence[Sequence[int]]], list[list[int]]]
"""A function that continues prompts, and returns the tokens of each."""


def batches(files: Files, args: Args, report: Report) -> None:
    """Generate texts at once on one core, and on two with half of the model on each, in turns with ``openvino_genai``."""
    random = np.random.default_rng(args.seed)
    prompts = random.integers(0, files.decoder.vocabulary, (max(_TEXTS), _PROMPT)).tolist()
    wanted = [reference(files.stateful, prompt, _TOKENS, exact=True) for prompt in prompts]
    plain = _plain(files)
    for cores in (two_cores()[:1], two_cores()):
        with ExitStack() as stack:
            progress(f"texts at once on {len(cores)} of the cores")
            try:
                rival = _genai(files, len(cores))
            except UsageError as error:
                report.note(f"  texts beside openvino_genai are left out: {error}")
                return
            devices = [f"CPU@{core}" for core in cores]
            opening = session_of(files.for_texts.stateful, devices, _PROMPT, _CONTEXT - _PROMPT, names=files.for_texts.names)
            session = stack.enter_context(opening)
            server = stack.enter_context(session.serve(_placement(session, args)))
            sequences = [stack.enter_context(server.sequence()) for _ in prompts]
            for texts in _TEXTS:
                ways = {"placeit": partial(_ours, sequences), "openvino_genai": rival, _PLAIN: partial(plain, len(cores))}
                same = dict.fromkeys(ways, 0)

                def taken(way: str, texts: int = texts, ways: dict[str, _Way] = ways, same: dict[str, int] = same) -> float:
                    begin = perf_counter()
                    found = ways[way](prompts[:texts])
                    spent = perf_counter() - begin
                    same[way] = sum(one == right for one, right in zip(found, wanted, strict=False))
                    return spent

                results = settled_race({way: partial(taken, way) for way in ways}, rounds=_TURNS[args.quick], seed=args.seed)
                for way, took in results.items():
                    report.row(
                        texts=texts,
                        cores=len(cores),
                        way=way,
                        tokens_per_second=texts * _TOKENS / took.median,
                        same_texts=same[way],
                    )
                what = f"{texts} texts on {'one core' if len(cores) == 1 else 'two cores'}"
                ratio = faster(results["openvino_genai"], results["placeit"])
                report.claim(f"{what}: tokens per second over openvino_genai", ratio.ratio, "", at_least=_LEAST[len(cores)])
                ideal = faster(results[_PLAIN], results["placeit"])
                report.claim(f"{what}: tokens per second over plain OpenVINO's, a core each", ideal.ratio, "")
                report.claim(f"{what}: texts that differ from the uncut model's", texts - same["placeit"], "texts", at_most=0)


def searched(files: Files, args: Args, report: Report) -> None:
    """Find the placement with the most tokens per second for two cores, and compare predictions with measurements."""
    devices = [f"CPU@{core}" for core in two_cores()]
    inputs, constraints = Inputs(context=_CONTEXT), Constraints(texts=_TEXTS[0])
    with Session(files.for_texts.stateful, devices, inputs=inputs, constraints=constraints, cache=None) as session:
        found = optimize_texts(session, budget=_SEARCH_S[args.quick], seed=args.seed, progress=progress)
    report.note(f"  {found.texts} texts of {found.prompt} and {found.tokens} tokens: {found.chosen.name}; {found.reason}")
    for one in found.settings:
        if one.failed is not None:
            report.note(f"  {one.name} failed: {one.failed}")
            continue
        report.row(
            settings=one.name,
            texts_per_step=one.rows,
            tokens_per_second=one.tokens_per_s,
            predicted=one.predicted,
            error=one.error,
            first_token_ms=None if one.first_s is None else one.first_s * 1e3,
            predicted_first_ms=None if one.predicted_first_s is None else one.predicted_first_s * 1e3,
        )
    single = max(one.tokens_per_s or 0 for one in found.settings if len(one.placement.used) == 1)
    report.claim(
        "answer: tokens per second over the best single device", (found.chosen.tokens_per_s or 0) / single, "", at_least=1.0
    )
    if found.error is not None:
        report.claim("predicted tokens per second: median error", found.error, "", at_most=0.15)


def long_prompt(files: Files, args: Args, report: Report) -> None:
    """Read a long prompt on one core, and in chunks on two, of which each has half of the model."""
    tokens, chunk = _LONG[args.quick], _CHUNK[args.quick]
    prompt = np.random.default_rng(args.seed).integers(0, files.decoder.vocabulary, tokens).tolist()
    firsts = dict[str, int]()
    with ExitStack() as stack:
        timers = dict[str, Callable[[], float]]()
        for count, whole in ((1, True), (1, False), (2, False)):
            devices = [f"CPU@{core}" for core in two_cores()[:count]]
            session = stack.enter_context(session_of(files.for_texts.stateful, devices, tokens, 2, names=INPUTS))
            server = stack.enter_context(session.serve(_placement(session, args)))
            sequence = stack.enter_context(server.sequence())
            size = tokens if whole else chunk
            name = " and ".join(devices) + ("" if whole else f", {chunk} tokens at a time")

            def first(name: str = name, sequence: OpenSequence = sequence, size: int = size) -> float:
                sequence.reset()
                begin = perf_counter()
                parts = [prompt[at : at + size] for at in range(0, tokens, size)]
                answers = [sequence.submit(step_inputs(INPUTS, part, at * size)) for at, part in enumerate(parts)]
                firsts[name] = int([answer.result() for answer in answers][-1]["logits"][0, -1].argmax())
                return perf_counter() - begin

            timers[name] = first
        results = settled_race(timers, rounds=_TURNS[args.quick], seed=args.seed)
    for name, took in results.items():
        report.row(prompt=tokens, devices=name, first_token_ms=took.median * 1e3, token=firsts[name])
    one, chunked, two = results.values()
    report.claim(f"first token of {tokens}, two devices over one", faster(two, one).ratio, "", at_most=0.65)
    report.claim(f"first token of {tokens}, two devices over one in as many chunks", faster(two, chunked).ratio, "")
    report.claim(f"first token of {tokens}, one device in chunks over at once", faster(chunked, one).ratio, "")
    report.claim(f"first token of {tokens}: answers", len({*firsts.values()}), "", at_most=1)


def _placement(session: Session, args: Args) -> Placement:
    """Return a placement with half of the model on each of two devices, or all of it on the only one."""
    if len(session.cluster.devices) == 1:
        return in_segments(session, np.zeros(len(session.grouping.groups)))
    session.profile(budget_s=_PROFILE_S[args.quick], progress=progress)
    return balanced(session)


def _ours(sequences: Sequence[OpenSequence], prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    for sequence in sequences:
        sequence.reset()
    begun = [continued(sequence, prompt, _TOKENS) for sequence, prompt in zip(sequences, prompts, strict=False)]
    return [one.result() for one in begun]


def _genai(files: Files, threads: int) -> _Way:
    openvino_genai, config = greedy(_TOKENS)
    openvino, scheduler = import_openvino(), openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    options = PRECISION | {"INFERENCE_NUM_THREADS": threads}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(files.for_texts.stateful.parent), scheduler, "CPU", options)

    def generate(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        found = pipeline.generate([openvino.Tensor(np.array([prompt])) for prompt in prompts], [config] * len(prompts))
        return [list(one.m_generation_ids[0]) for one in found]

    return generate


def _plain(files: Files) -> Callable[[int, Sequence[Sequence[int]]], list[list[int]]]:
    """Return a function that continues one of some equal shares of the prompts in one batch on one core."""
    options = PRECISION | {"INFERENCE_NUM_THREADS": 1}
    request = openvino_core().compile_model(files.for_texts.stateful, "CPU", options).create_infer_request()

    def generate(shares: int, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        request.reset_state()
        new, past, found = np.array(prompts[: len(prompts) // shares]), 0, []
        for _ in range(_TOKENS):
            inputs, past = step_inputs(INPUTS, new, past), past + new.shape[1]
            new = request.infer(inputs)["logits"][:, -1].argmax(-1)[:, None]
            found.append(new)
        return np.hstack(found).tolist()

    return generate
