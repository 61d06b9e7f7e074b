"""Servers that generate texts in turns, with prompts in chunks of several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from placeit.core.errors import PlaceitError
from placeit.core.placement import Placement, Serving
from placeit.measuring.statistics import Measurement
from placeit.serving.server import Server
from placeit.session import Session
from placeit.text.generating import CHUNK, TextModel, Wanted
from placeit.text.optimized import TextSettings

__all__ = ["Load", "Trial", "open_trials"]

_CHUNKS = (CHUNK, 2 * CHUNK, CHUNK // 2)  # tokens of a chunk that are tried
_PILOT_TOKENS = 4  # tokens of the texts that show how long a turn takes


class Load:
    """The texts that are generated at once: random prompts, which are new in each turn, so that none is in a prefix cache."""

    def __init__(self, texts: int, context: int, seed: int) -> None:
        self.texts, self.prompt = texts, max(1, context // 2)
        self.tokens = max(1, context - self.prompt)
        self._random = np.random.default_rng(seed)

    def seconds(self, parts: tuple[float, float]) -> float:
        """Return the seconds of all texts, given the seconds of their prompts and of a further token of all of them."""
        return parts[0] + (self.tokens - 1) * parts[1]

    def generate(self, model: TextModel, tokens: int | None = None) -> tuple[float, float]:
        """Generate all texts; return the seconds, and the seconds until all of them had their first tokens."""
        prompts = self._random.integers(0, model.vocabulary, (self.texts, self.prompt)).tolist()
        first, begun = 0.0, set[int]()
        begin = perf_counter()
        for number, piece in model.generate_all(prompts, Wanted(tokens or self.tokens), at_once=self.texts):
            if piece.error is not None:
                raise piece.error
            if number not in begun:
                begun.add(number)
                first = perf_counter() - begin
        return perf_counter() - begin, first


class _NoTokenizer:
    """Stands for the tokenizer where texts are numbers of tokens: no token has a text, and none ends a text."""

    ends: frozenset[int] = frozenset()

    def decoder(self, _: Sequence[int] = ()) -> Callable[[int], str]:
        return lambda _: ""


@dataclass(eq=False)
class Trial:
    """Settings while they are measured.

    Attributes:
        of: name of the placement.
        placement: the placement.
        chunk: tokens of a chunk of a prompt.
        server: the server that generates the texts; None if the placement has failed.
        model: the decoder on the server, with this chunk; None if the placement has failed.
        host_s: CPU seconds of the server's own threads for a token.
        simulated: predicted seconds of all prompts, and of a further token of all texts; None if they are not known.
        failed: why the placement cannot generate texts; None if it can.
        firsts: seconds until all texts had their first tokens, of each turn.
        turn_s: measured seconds of all prompts, and of a further token of all texts, before the turns.
    """

    of: str
    placement: Placement
    chunk: int
    server: Server | None = None
    model: TextModel | None = None
    host_s: float = 0.0
    simulated: tuple[float, float] | None = None
    failed: str | None = None
    firsts: list[float] = field(default_factory=list)
    turn_s: tuple[float, float] = (0.0, 0.0)

    @property
    def name(self) -> str:
        """Name of the placement, with the chunk if it has several devices."""
        return f"{self.of}, chunks of {self.chunk}" if self.devices > 1 else self.of

    @property
    def devices(self) -> int:
        """Number of devices that have ops."""
        return len(self.placement.used)

    @cached_property
    def rows(self) -> int:
        """Most texts in a step."""
        joined = [] if self.server is None else [one.most for one in self.server.stepping]
        return max(1, *joined) if joined else 1

    def rows_of(self, texts: int) -> int:
        """Return how many texts are in a step while each device may have a step in flight."""
        return min(self.rows, math.ceil(texts / self.devices))

    def summed_up(self, load: Load, measured: Measurement | None) -> TextSettings:
        """Return the settings with the measurements of texts of the same lengths as the predicted ones."""
        simulated = self.simulated
        return TextSettings(
            self.name,
            self.of,
            replace(self.placement, serving=Serving(chunk=self.chunk)),
            self.rows_of(load.texts),
            None if simulated is None else load.texts * load.tokens / load.seconds(simulated),
            None if simulated is None else simulated[0],
            None if self.failed else measured,
            float(np.median(self.firsts)) if self.firsts else None,
            self.failed,
        )


def open_trials(session: Session, name: str, placement: Placement, load: Load, stack: ExitStack) -> list[Trial]:
    """Start the server of a placement; return a trial for each size of chunks. The stack closes the server."""
    placement = replace(placement, serving=None, result=None, conditions=session.setup.conditions)
    trial = Trial(name, placement, min(CHUNK, load.prompt))
    try:
        if (wrong := session.run(placement, runs=1, warmup=0).failed) is not None:
            return [replace(trial, failed=wrong)]
        trial.server = stack.enter_context(session.serve(placement))
        chunks = sorted({min(chunk, load.prompt) for chunk in _CHUNKS}) if trial.devices > 1 else [trial.chunk]
        no_text: Any = _NoTokenizer()
        models = {chunk: TextModel(trial.server, session.model, no_text, chunk=chunk) for chunk in chunks}
        _pilot(trial, trial.server, models[chunks[0]], load)
    except PlaceitError as error:
        return [replace(trial, failed=str(error))]
    return [replace(trial, chunk=chunk, model=model, firsts=[]) for chunk, model in models.items()]


def _pilot(trial: Trial, server: Server, model: TextModel, load: Load) -> None:
    """Generate short texts, twice, and keep in the trial how long a turn takes, and the work of the server for each token."""
    tokens = min(load.tokens, _PILOT_TOKENS)
    load.generate(model, tokens)  # warms up
    before = server.cpu_seconds
    taken, first = load.generate(model, tokens)
    trial.turn_s = first, (taken - first) / max(1, tokens - 1)
    trial.host_s = (server.cpu_seconds - before) / (load.texts * tokens)
