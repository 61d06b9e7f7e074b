"""Find how to generate texts with the most tokens per second: the placement, the texts in a step, and the chunks of prompts.

Placements are searched by the time of a step, with the typical number of texts in it, while each device may have a step in
flight. The simulator predicts how many tokens per second each placement gives with prompts in chunks of several sizes, from the
costs of such steps and chunks. The most promising then take turns: each has a server that generates all texts at once, from
their prompts to their last tokens, and the caller's clock decides.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from placeit.core import clock
from placeit.core.errors import ExecutionError, PlaceitError, UsageError
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement, Serving
from placeit.core.sizes import SizeRange
from placeit.core.units import parse_duration
from placeit.measuring.measure import Race
from placeit.measuring.statistics import FEWEST, Measurement, Ratio, faster, median_error, median_interval
from placeit.optimizer.options import Budget
from placeit.planning.segments import Plan
from placeit.profiler.costs import Progress
from placeit.serving.convoy import MASK
from placeit.serving.server import Server
from placeit.session import Session
from placeit.simulator.depth import served
from placeit.text.generating import CHUNK, TextModel, Wanted
from placeit.workbench.options import Constraints, Inputs

__all__ = ["TextSettings", "TextsOptimized", "optimize_texts"]

_SEARCH_SHARE = 0.4  # share of the budget for the search for placements
_PROFILE_SHARE = 0.25  # share of the time left then for the costs of other numbers of texts and tokens
_MAX_SPLITS = 3  # placements over several devices that are tried
_MAX_SETTINGS = 6  # settings that generate texts in turns
_CHUNKS = (CHUNK, 2 * CHUNK, CHUNK // 2)  # tokens of a chunk that are tried
_PILOT_TOKENS = 4  # tokens of the texts that show how long a turn takes
_MAX_TURNS = 16  # turns of each of the settings, after which intervals are narrow
_MIN_TOKENS = 8  # least tokens of a text, if there is no time for whole answers


@dataclass(frozen=True, eq=False)
class TextSettings:
    """A placement with a size of the chunks of prompts, and its predicted and measured speed.

    Attributes:
        name: name of the placement and the chunks.
        of: name of the placement.
        placement: the placement, with the chunk in its settings (:class:`placeit.core.placement.Serving`).
        rows: most texts in a step; 1 if their steps cannot be joined.
        predicted: tokens per second of all texts by the simulator, prompts included; None if the costs are not known.
        predicted_first_s: seconds until all texts have their first tokens, by the simulator; None if the costs are not known.
        measured: seconds per token of each turn; None if the settings were not measured.
        first_s: seconds until all texts had their first tokens, median of the turns; None if they were not measured.
        failed: why they cannot generate texts; None if they can.
    """

    name: str
    of: str
    placement: Placement
    rows: int = 1
    predicted: float | None = None
    predicted_first_s: float | None = None
    measured: Measurement | None = None
    first_s: float | None = None
    failed: str | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all texts, prompts included, median of the turns; None if they were not measured."""
        return None if self.measured is None else 1 / self.measured.median

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of :attr:`tokens_per_s`; (0, inf) if it is unknown."""
        low, high = (0.0, math.inf) if self.measured is None else median_interval(self.measured.samples)
        return (1 / high if high else math.inf, 1 / low if low else math.inf)

    @property
    def error(self) -> float | None:
        """Relative error of the predicted tokens per second; None unless both are known."""
        known = self.predicted is not None and self.tokens_per_s is not None
        return (self.predicted or 0.0) / (self.tokens_per_s or 1.0) - 1 if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dict for JSON."""
        low, high = self.interval
        return {
            "name": self.name,
            "placement": self.of,
            "devices": self.placement.counts(),
            "texts_per_step": self.rows,
            "chunk": None if self.placement.serving is None else self.placement.serving.chunk,
            "predicted_tokens_per_s": self.predicted,
            "prediction_error": self.error,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_ci": [low, high],
            "predicted_first_token_s": self.predicted_first_s,
            "first_token_s": self.first_s,
            "turns": 0 if self.measured is None else len(self.measured.samples),
            "failed": self.failed,
        }


@dataclass(frozen=True, eq=False)
class TextsOptimized:
    """The result of :func:`optimize_texts`.

    Attributes:
        model: path of the decoder.
        texts: number of texts that are generated at once.
        prompt: tokens of each prompt.
        tokens: tokens that are generated after each prompt.
        settings: all settings, the fastest first; settings that were not measured come last.
        chosen: the fastest settings; a single device, unless a placement over several is faster beyond the interval.
        ratio: time of the best placement over several devices over the time of the best single device, in the same turns; None
            if one of them was not measured.
        interrupted: whether Ctrl-C ended the measurement early.
    """

    model: Path
    texts: int
    prompt: int
    tokens: int
    settings: tuple[TextSettings, ...]
    chosen: TextSettings
    ratio: Ratio | None
    interrupted: bool

    def __repr__(self) -> str:
        return f"<TextsOptimized {self.model}: {len(self.settings)} settings; {self.chosen.name}: {self.reason}>"

    @property
    def placement(self) -> Placement:
        """The chosen placement, with its settings."""
        return self.chosen.placement

    @property
    def error(self) -> float | None:
        """Median absolute relative error of the predicted tokens per second; None if none was both predicted and measured."""
        return median_error(one.error for one in self.settings)

    @property
    def reason(self) -> str:
        """The reason for the choice, as a sentence."""
        speed = f"{self.chosen.tokens_per_s or 0:.4g} tokens per second"
        if self.ratio is None:
            return f"{speed}; nothing was compared with it"
        ends = f"(95 % interval {self.ratio.ci_low:.2f} to {self.ratio.ci_high:.2f})"
        if not math.isfinite(self.ratio.ci_high):
            ends = "(too few turns for an interval: give a larger --budget)"
        outcome = "faster" if self.ratio.faster else "not certainly faster"
        return f"{speed}; the best split takes {self.ratio.ratio:.2f} of the best single device's time {ends}: it is {outcome}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, as ``placeit optimize --objective tokens --json`` prints it."""
        ratio = self.ratio
        return jsonable_dict(
            {
                "model": str(self.model),
                "objective": "tokens",
                "texts": self.texts,
                "prompt_tokens": self.prompt,
                "tokens": self.tokens,
                "chosen": self.chosen.name,
                "reason": self.reason,
                "ratio": None if ratio is None else {"ratio": ratio.ratio, "ci": [ratio.ci_low, ratio.ci_high]},
                "prediction_error": self.error,
                "settings": [one.to_dict() for one in self.settings],
                "interrupted": self.interrupted,
            }
        )


def optimize_texts(
    session: Session,
    *,
    budget: float | str = 60.0,
    placements: Mapping[str, Placement] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> TextsOptimized:
    """Find how to generate several texts at once with the most tokens per second, by measuring.

    A text is half prompt and half answer, and has as many tokens as the context of the session. If there is no time for that,
    answers are shorter in the measurement; :attr:`TextsOptimized.tokens` has the number.

    Args:
        session: a decoder, opened with ``Inputs(context=...)``. ``Constraints(texts=...)`` is the number of texts.
        budget: seconds, or a text such as ``2m``.
        placements: placements to try, by name; None to search for them by the time of a step, in 0.4 of the budget, and to try
            the best single device, the whole CPU if devices are parts of it, and the best three placements over several.
        seed: seed of the search and of the tokens of prompts.
        progress: function that is called with the current activity and the share of it that is done.

    Raises:
        UsageError: the model is no decoder with a context, or the budget cannot be read or is not positive.
        ExecutionError: no placement can generate texts; the message gives the reason of each.
        PlaceitError: an error of :meth:`placeit.Session.optimize`.
        KeyboardInterrupt: Ctrl-C before each of the settings had had a turn; afterwards it ends the measurement.
    """
    texts = session.setup.texts
    if texts is None:
        raise UsageError(
            f"{session.model.path} is not placed for texts: the objective 'tokens' is for decoders with a context "
            "(--context, and --texts for the number of texts)."
        )
    seconds = Budget(parse_duration(budget) if isinstance(budget, str) else budget).seconds
    until, report = clock.now() + seconds, progress or (lambda *_: None)
    load = _Load(texts.count, texts.tokens, seed)
    with ExitStack() as stack:
        costs = _Costs(session, load, stack)
        named = _search(costs, _SEARCH_SHARE * seconds, seed, progress) if placements is None else dict(placements)
        costs.placements = [one for placement in named.values() for one in placement.every]
        if placements is None:
            costs.divide(session)
        trials = list[_Trial]()
        for number, (name, placement) in enumerate(named.items()):
            report("opening servers", number / len(named))
            trials += _opened(session, name, placement, load, stack)
        costs.until = clock.now() + _PROFILE_SHARE * max(0.0, until - clock.now())
        for number, trial in enumerate(trials):
            report("predicting", number / len(trials))
            costs.predict(trial)
        return _measured(session, load, trials, until, seed, progress)


class _Load:
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
class _Trial:
    """Settings while they are measured."""

    of: str
    placement: Placement
    chunk: int
    server: Server | None = None
    model: TextModel | None = None
    host_s: float = 0.0  # CPU seconds of the server's threads for a token, beside the work of devices
    simulated: tuple[float, float] | None = None  # seconds of prompts, and of a further token of all texts
    failed: str | None = None
    firsts: list[float] = field(default_factory=list)
    turn_s: tuple[float, float] = (0.0, 0.0)  # the same of the last trial

    @property
    def name(self) -> str:
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

    def summed_up(self, load: _Load, measured: Measurement | None) -> TextSettings:
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


def _opened(session: Session, name: str, placement: Placement, load: _Load, stack: ExitStack) -> list[_Trial]:
    """Start the server of a placement; return a trial for each size of chunks. The stack closes the server."""
    placement = replace(placement, serving=None, result=None, conditions=session.setup.conditions)
    trial = _Trial(name, placement, min(CHUNK, load.prompt))
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


def _pilot(trial: _Trial, server: Server, model: TextModel, load: _Load) -> None:
    """Generate short texts, twice, and keep in the trial how long a turn takes, and the work of the server for each token."""
    tokens = min(load.tokens, _PILOT_TOKENS)
    load.generate(model, tokens)  # warms up
    before = server.cpu_seconds
    taken, first = load.generate(model, tokens)
    trial.turn_s = first, (taken - first) / max(1, tokens - 1)
    trial.host_s = (server.cpu_seconds - before) / (load.texts * tokens)


class _Costs:
    """Sessions with the costs of steps of several numbers of texts, and of chunks of several numbers of tokens.

    Attributes:
        session: the decoder on its devices.
        load: the texts.
        placements: placements that are predicted, each replica by itself.
        until: when no more costs are measured, by :func:`placeit.core.clock.now`.
    """

    def __init__(self, session: Session, load: _Load, stack: ExitStack) -> None:
        self.session, self.load, self._stack = session, load, stack
        self._known: dict[tuple[int, int], Session | None] = {}
        self.placements: Sequence[Placement] = ()
        self.until = math.inf

    def divide(self, session: Session) -> None:
        """Split groups of a session in which nothing has run yet, since they depend on the sizes of a step."""
        for placement in self.placements:
            if session.home_of(placement) is session and not session.has_costs:
                with contextlib.suppress(PlaceitError):  # its server says why it cannot run
                    session.divide(placement, by_segments=placement.segments is not None)

    def at(self, rows: int, tokens: int) -> Session | None:
        """Return a session whose steps have some texts, and tokens of each; its costs are not measured yet.

        None if the model cannot be read again at these sizes.
        """
        key = rows, tokens
        if key not in self._known:
            self._known[key] = self._opened(rows, tokens)
        return self._known[key]

    def _opened(self, rows: int, tokens: int) -> Session | None:
        setup, past = self.session.setup, self.load.prompt
        shapes: dict[str, list[int | SizeRange]] = {}
        for spec in self.session.model.inputs:
            before = past if spec.name == MASK else 0
            typical = ((past, before + tokens), (0, 1))
            shapes[spec.name] = [
                low if low == high else SizeRange(low, high, *(((rows, rows), (0, 1)) if axis == 0 else typical))
                for axis, (low, high) in enumerate(spec.limits or tuple((size, size) for size in spec.shape))
            ]
        model = setup.model
        logits: Literal["last", "all"] = "all" if model.logits == "all" else "last"
        try:
            return self._stack.enter_context(
                Session(
                    model.path,
                    self.session.cluster,
                    precision=setup.precision,
                    inputs=Inputs(shapes=shapes, state=dict(model.caches) or None, logits=logits),
                    constraints=Constraints(setup.pins, setup.memory, tolerance=setup.tolerance, texts=self.load.texts),
                    cache=setup.cache,
                    policy=setup.policy,
                )
            )
        except UsageError:
            return None

    def predict(self, trial: _Trial) -> None:
        """Simulate a trial, if the costs of its steps are known, or can be measured in time.

        Replicas share the texts. A group of texts steps again once the server has chosen their tokens. While it waits for that,
        other groups have steps on the devices, one group for each device.
        """
        if trial.failed is None:
            every = trial.placement.every
            each = [self._seconds(trial, replace(one, replicas=()), self.load.texts / len(every)) for one in every]
            known = [one for one in each if one is not None]
            if len(known) == len(every):
                first_s, token_s = np.max(known, axis=0).tolist()
                trial.simulated = first_s, token_s

    def _seconds(self, trial: _Trial, placement: Placement, texts: float) -> tuple[float, float] | None:
        """Return the seconds of a replica's prompts, and of a further token of its texts; None if costs are not known."""
        load, groups, rows = self.load, len(placement.used), trial.rows_of(self.load.texts)
        chunk = trial.chunk if groups > 1 else load.prompt
        step, prompt = self._plan(placement, rows, 1), self._plan(placement, 1, chunk)
        if step is None or prompt is None:
            return None
        host_s = rows * trial.host_s
        step_s = max(served(step.problem, step.placement, groups).seconds, (step.schedule.makespan + host_s) / groups, host_s)
        chunk_s = served(prompt.problem, prompt.placement, groups).seconds
        first_s = prompt.schedule.makespan + (texts * math.ceil(load.prompt / chunk) - 1) * chunk_s
        return first_s, texts * step_s / rows

    def _plan(self, placement: Placement, rows: int, tokens: int) -> Plan | None:
        """Return the plan of a placement with the costs of steps; None if they are not known."""
        session = self.at(rows, tokens)
        if session is None:
            return None
        placement = replace(placement, conditions=session.setup.conditions)
        if session.home_of(placement) is not session:  # the whole CPU, which has no costs of groups
            return None
        if not session.has_costs:
            self.divide(session)
            if not session.recall():
                left = self.until - clock.now()
                if left <= 0:
                    return None
                session.profile(budget_s=left / 2)
        plan = session.plan_of(placement)
        return plan if plan.schedule.makespan > 0 else None


def _search(costs: _Costs, seconds: float, seed: int, progress: Progress | None) -> dict[str, Placement]:
    """Search for placements by the time of steps; return the best splits, the best single device, and the plain devices.

    Each device may have a step in flight, and the texts are divided among these steps.
    """
    session, load = costs.session, costs.load
    devices = len(session.cluster)
    stepping = costs.at(math.ceil(load.texts / devices), 1) or session
    found = stepping.optimize("throughput", budget=seconds, in_flight=devices, seed=seed, progress=progress)
    if found.interrupted:
        raise KeyboardInterrupt
    able = [one for one in found.candidates if one.failed is None]
    several = sorted((one for one in able if len(one.placement.used) > 1), key=lambda one: one.measured is None)
    singles = [one for one in able if one.placer == "single"]
    chosen = [*several[:_MAX_SPLITS], *(one for one in singles if one.plain), *[one for one in singles if not one.plain][:1]]
    return {one.name: one.placement for one in chosen} or {found.chosen.name: found.placement}


def _measured(
    session: Session, load: _Load, trials: Sequence[_Trial], until: float, seed: int, progress: Progress | None
) -> TextsOptimized:
    """Have the most promising trials generate texts in turns, and choose."""
    able = [one for one in trials if one.failed is None]
    if not able:
        raise _nothing_generates(trials)
    raced = _promising(able, load)
    load.tokens = _answer(raced, load, until - clock.now())

    def turn(trial: _Trial) -> Callable[[], float]:
        def run() -> float:
            assert trial.model is not None  # noqa: S101
            try:
                taken, first = load.generate(trial.model)
            except PlaceitError as error:
                raise ExecutionError(str(error)) from error
            trial.firsts.append(first)
            return taken / (load.texts * load.tokens)

        return run

    def leave(name: str, why: ExecutionError | None) -> None:
        if why is not None:
            next(one for one in raced if one.name == name).failed = str(why)

    race = Race({one.name: turn(one) for one in raced}, seed=seed, warmup=0, leave=leave, blocks=False)
    report: Progress = progress or (lambda *_: None)
    interrupted = False
    try:
        race.run(
            rounds=_MAX_TURNS,
            budget_s=max(0.0, until - clock.now()),
            min_rounds=1,
            progress=lambda _, share: report("generating texts", share),
        )
    except KeyboardInterrupt:
        session.hurry()
        interrupted = True
    results = race.results()
    if interrupted and len(results) < len(race.running):
        raise KeyboardInterrupt
    done = [(one, one.summed_up(load, results.get(one.name))) for one in trials]
    if not any(settings.measured for _, settings in done):
        raise _nothing_generates(trials)
    ranked = sorted(done, key=lambda pair: (pair[1].measured is None, 1 / (pair[1].tokens_per_s or 1.0)))
    measured = [(trial, settings) for trial, settings in ranked if settings.measured is not None]
    single = next((settings for trial, settings in measured if trial.devices == 1), None)
    split = next((settings for trial, settings in measured if trial.devices > 1), None)
    chosen, ratio = measured[0][1], None
    if single is not None and split is not None and single.measured is not None and split.measured is not None:
        ratio = faster(split.measured, single.measured)
        chosen = split if ratio.faster else single
    settings = tuple(one for _, one in ranked)
    return TextsOptimized(session.model.path, load.texts, load.prompt, load.tokens, settings, chosen, ratio, interrupted)


def _nothing_generates(trials: Sequence[_Trial]) -> ExecutionError:
    reasons = (f"{one.name}: {one.failed}" for one in trials if one.failed is not None)
    return ExecutionError(" ".join(["No placement can generate texts.", *reasons]))


def _promising(able: Sequence[_Trial], load: _Load) -> list[_Trial]:
    """Return the trials that take turns: each placement in chunks of the best predicted size, the best split in others, too."""

    def key(trial: _Trial) -> tuple[bool, float]:
        simulated = trial.simulated
        return simulated is None, abs(trial.chunk - CHUNK) if simulated is None else load.seconds(simulated)

    placements = {one.of: min((other for other in able if other.of == one.of), key=key) for one in able}
    first = sorted(placements.values(), key=lambda one: load.seconds(one.turn_s))
    split = next((one for one in first if one.devices > 1), first[0])
    others = sorted((one for one in able if one not in first and one.of == split.of), key=key)
    return [*first, *others][:_MAX_SETTINGS]


def _answer(trials: Sequence[_Trial], load: _Load, left: float) -> int:
    """Return how many tokens each text may have, so that all trials have enough turns in ``left`` seconds."""
    prompts, each = (sum(one.turn_s[i] for one in trials) for i in (0, 1))
    fit = (left / FEWEST - prompts) / each if each > 0 else math.inf
    return int(min(load.tokens, max(_MIN_TOKENS, fit)))
