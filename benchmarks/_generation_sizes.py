"""Open sizes: an encoder at random lengths compared with static compilation, and many requests of random lengths."""

from __future__ import annotations

import tempfile
import time
from collections import Counter, deque
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._generation_rivals import NAMES, Steps, in_segments, plain_steps, session_of
from benchmarks._harness import Args, Report, timed
from benchmarks._models import progress, settled_race, two_cores
from benchmarks._plain import bound_thread, openvino_options
from examples import models
from examples.decoder import TINY, write_decoder
from examples.generate_text import step_inputs
from placeit.core.errors import ExecutionError, PlaceitError, SequenceError
from placeit.core.memory import own_use
from placeit.core.sizes import SizeRange
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import faster
from placeit.serving.answers import Answer
from placeit.serving.sequence import Sequence
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench.options import Inputs

__all__ = ["encoder", "soak"]

_LENGTHS, _MAX_WORDS = (16, 4), 512
"""Number of lengths, in full and quick, and the largest length."""
_ROUNDS, _WORDS = (20, 6), 256
_REQUESTS = (10_000, 300)
_RATE = 150.0
"""Requests per second."""
_LIVE, _LONGEST, _TOKENS = 6, 24, 96
"""Number of sequences at once, and the most tokens of one request and of one sequence."""
_ALONE, _DROPPED = 0.3, 0.04
"""Shares of requests that belong to no sequence, and that end their sequence by dropping it, with pending requests."""
_TIMEOUT_S = 60.0
_MAX_GROWTH_MB = 100.0
_TOLERANCE = 1e-4


def encoder(args: Args, report: Report) -> None:
    """Run BERT-base at random lengths on one core: one placement, compared with the model compiled for each length."""
    random, first = np.random.default_rng(args.seed), two_cores()[0]
    model = models.build_model("bert_base", seed=args.seed)
    if args.quick:
        model.layers, model.words = model.layers[:1], torch.nn.Embedding(_WORDS, model.words.embedding_dim)  # type: ignore[index]
    lengths = random.choice(np.arange(1, _MAX_WORDS + 1), _LENGTHS[args.quick], replace=False).tolist()
    ratios, errors = [], []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        examples = models.example_inputs("bert_base")
        examples["input_ids"] %= _WORDS
        axes = {name: {0: "batch", 1: "tokens"} for name in examples}
        path = models.write_onnx(model, Path(folder) / "bert.onnx", examples, ["hidden", "pooled"], axes=axes)
        sizes = {name: (1, SizeRange(1, _MAX_WORDS, (128,))) for name in examples}
        session = stack.enter_context(Session(path, [f"CPU@{first}"], inputs=Inputs(shapes=sizes), cache=None))
        server = stack.enter_context(session.serve(in_segments(session, [0] * len(session.grouping.groups))))
        thread = stack.enter_context(bound_thread(first))
        for length in sorted(lengths):
            inputs = {name: np.ones((1, length), np.int64) for name in examples}
            inputs["input_ids"] = random.integers(0, _WORDS, (1, length))
            inputs["token_type_ids"] = np.zeros((1, length), np.int64)
            static = openvino_core().read_model(path)
            static.reshape({name: [1, length] for name in examples})
            request = openvino_core().compile_model(static, "CPU", openvino_options(1)).create_infer_request()
            alone = timed(lambda request=request, inputs=inputs: request.infer(inputs, share_outputs=True))
            timers = {
                "placeit": timed(lambda inputs=inputs: server.submit(inputs).result()),
                "static": lambda alone=alone: thread.submit(alone).result(),
            }
            results = settled_race(timers, rounds=_ROUNDS[args.quick], seed=args.seed, blocks=False)
            ratio = faster(results["placeit"], results["static"])
            wanted = {output.any_name: np.array(request.get_tensor(output).data) for output in request.model_outputs}
            error = OutputDifference.between(server.submit(inputs).result(), wanted).max_rel
            report.row(
                tokens=length,
                placeit_ms=results["placeit"].median * 1e3,
                static_ms=results["static"].median * 1e3,
                ratio=ratio.ratio,
                ratio_low=ratio.ci_low,
                ratio_high=ratio.ci_high,
                output_error=error,
            )
            ratios.append(ratio.ratio)
            errors.append(error)
    what = f"BERT at {len(lengths)} lengths"
    report.claim(f"{what}: largest output error over the largest value", max(errors), "", at_most=_TOLERANCE)
    report.claim(f"{what}: time over static compilation, worst length", max(ratios), "", at_most=1.1)
    report.claim(f"{what}: time over static compilation, all lengths", float(np.exp(np.mean(np.log(ratios)))), "")


@dataclass(eq=False)
class _Told:
    """A sequence, and the requests made to it.

    Attributes:
        plain: the same decoder in plain OpenVINO, and the function that resets it.
        past: tokens so far.
        dropped: whether its pending requests need not be answered.
    """

    sequence: Sequence
    plain: tuple[Steps, Any]
    past: int = 0
    dropped: bool = False


@dataclass
class _Soak:
    """Requests of random lengths, some of sequences, and their outcomes."""

    server: Server
    compiled: Any
    random: np.random.Generator
    live: list[_Told] = field(default_factory=list)
    open: deque[tuple[Answer, dict[str, NDArray[np.generic]], _Told | None]] = field(default_factory=deque)
    spare: list[tuple[Steps, Any]] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)
    tokens: int = 0

    def ask(self) -> None:
        """Submit one request."""
        told = None if self.random.random() < _ALONE else self._sequence()
        past, most = (0, _LONGEST) if told is None else (told.past, min(_LONGEST, _TOKENS - told.past))
        ids = self.random.integers(0, TINY.vocabulary, int(self.random.integers(1, most + 1))).tolist()
        inputs = step_inputs(NAMES, ids, past)
        answer = self.server.submit(inputs) if told is None else told.sequence.submit(inputs)
        self.open.append((answer, inputs, told))
        self.tokens += len(ids)
        if told is None:
            return
        told.past += len(ids)
        if self.random.random() < _DROPPED:
            told.dropped = True
            told.sequence.close(drain=False)
            self.count["sequences dropped"] += 1
        elif told.past == _TOKENS:
            told.sequence.close()
            self.count["sequences finished"] += 1
        else:
            return
        self.live.remove(told)

    def _sequence(self) -> _Told:
        if len(self.live) < _LIVE:
            self.live.append(_Told(self.server.sequence(), self._plain()))
        return self.live[int(self.random.integers(len(self.live)))]

    def _plain(self) -> tuple[Steps, Any]:
        made = self.spare.pop() if self.spare else plain_steps(self.compiled)
        made[1]()
        return made

    def take(self, *, wait: bool) -> None:
        """Compare the available answers, or all, with plain OpenVINO's, in the order of the requests."""
        while self.open and (wait or self.open[0][0].done()):
            answer, inputs, told = self.open.popleft()
            plain = self._plain() if told is None else told.plain
            wanted = np.array(plain[0](inputs))
            try:
                found = answer.result(_TIMEOUT_S)["logits"][0, -1]
                error = OutputDifference.between({"logits": found}, {"logits": wanted}).max_rel
                self.count["right" if error <= _TOLERANCE else "wrong"] += 1
            except (CancelledError, SequenceError, ExecutionError):
                self.count["given up" if told is not None and told.dropped else "lost"] += 1
            except (PlaceitError, TimeoutError):
                self.count["lost"] += 1
            if told is None or (not any(other is told for _, _, other in self.open) and told not in self.live):
                self.spare.append(plain)


def soak(args: Args, report: Report) -> None:
    """Serve requests of random lengths and sequences at a rate, on two devices; sequences are dropped in the middle."""
    requests, used = _REQUESTS[args.quick], dict[int, float]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = write_decoder(TINY, Path(folder) / "decoder.xml", seed=args.seed)
        devices = [f"CPU@{core}" for core in two_cores()]
        session = stack.enter_context(session_of(path, devices, _LONGEST, _TOKENS))
        groups = np.arange(len(session.grouping.groups))
        server = stack.enter_context(session.serve(in_segments(session, groups * 2 // len(groups))))
        compiled = openvino_core().compile_model(path, "CPU", openvino_options(1))
        work = _Soak(server, compiled, np.random.default_rng(args.seed))
        progress(f"{requests} requests at {_RATE:g} per second")
        begin = time.perf_counter()
        for number in range(requests):
            due = begin + number / _RATE
            while (left := due - time.perf_counter()) > 0:
                work.take(wait=False)
                time.sleep(min(left, 1e-3))
            work.ask()
            if number in (requests // 10, requests - 1):
                used[number] = own_use().bytes
        work.take(wait=True)
        taken = time.perf_counter() - begin
        for told in work.live:
            told.sequence.close()
    grown = (used[requests - 1] - used[requests // 10]) / 1e6
    outcomes = {what: work.count[what] for what in ("right", "wrong", "lost", "given up")}
    counts = {what.replace(" ", "_"): work.count[what] for what in ("sequences finished", "sequences dropped")}
    report.row(
        requests=requests,
        per_second=requests / taken,
        tokens=work.tokens,
        **{what.replace(" ", "_"): count for what, count in (outcomes | counts).items()},
        memory_at_a_tenth_mb=used[requests // 10] / 1e6,
        memory_at_the_end_mb=used[requests - 1] / 1e6,
    )
    report.claim(f"{requests} requests: lost", work.count["lost"], "requests", at_most=0)
    report.claim(f"{requests} requests: wrong", work.count["wrong"], "requests", at_most=0)
    report.claim(f"{requests} requests: memory grown since a tenth of them", grown, "MB", at_most=_MAX_GROWTH_MB)
