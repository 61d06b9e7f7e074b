"""Find how to generate texts with the most tokens per second: the placement, the texts in a step, and the chunks of prompts.

Placements are searched by the time of a step, with the typical number of texts in it, while each device may have a step in
flight. The simulator predicts how many tokens per second each placement gives with prompts in chunks of several sizes, from the
costs of such steps and chunks. The most promising then take turns: each has a server that generates all texts at once, from
their prompts to their last tokens, and the caller's clock decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from placeit.core import clock
from placeit.core.errors import ExecutionError, PlaceitError, UsageError
from placeit.core.placement import Placement
from placeit.measuring.measure import Race
from placeit.measuring.statistics import FEWEST, faster
from placeit.optimizer.options import Budget, Candidates
from placeit.placers.base import Placer
from placeit.profiler.costs import Progress
from placeit.session import Session
from placeit.text.generating import CHUNK
from placeit.text.optimized import TextsOptimized
from placeit.text.predicting import StepCosts
from placeit.text.trials import Load, Trial, open_trials

__all__ = ["optimize_texts"]

_SEARCH_SHARE = 0.4  # share of the budget for the search for placements
_PROFILE_SHARE = 0.25  # share of the time left then for the costs of other numbers of texts and tokens
_MAX_SPLITS = 3  # placements over several devices that are tried
_MAX_SETTINGS = 6  # settings that generate texts in turns
_MAX_TURNS = 16  # turns of each of the settings, after which intervals are narrow
_MIN_TOKENS = 8  # least tokens of a text, if there is no time for whole answers


def optimize_texts(
    session: Session,
    *,
    budget: float | str | Budget = 60.0,
    placements: Mapping[str, Placement] | None = None,
    candidates: Candidates | Sequence[str | Placer] = Candidates(),
    seed: int = 0,
    progress: Progress | None = None,
) -> TextsOptimized:
    """Find how to generate several texts at once with the most tokens per second, by measuring.

    A text is half prompt and half answer, and has as many tokens as the context of the session. If there is no time for that,
    answers are shorter in the measurement; :attr:`TextsOptimized.tokens` has the number.

    Args:
        session: a decoder, opened with ``Inputs(context=...)``. ``Constraints(texts=...)`` is the number of texts.
        budget: seconds, a text such as ``2m``, or :class:`placeit.Budget`, whose file keeps the measurements of steps.
        placements: placements to try, by name; None to search for them by the time of a step, in 0.4 of the budget, and to try
            the best single device, the whole CPU if devices are parts of it, the best three placements over several, and those
            that the search was given to start from.
        candidates: which placements the search for the time of a step compares, as for :meth:`placeit.Session.optimize`.
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
    limit = Budget.of(budget)
    until, report = clock.now() + limit.seconds, progress or (lambda *_: None)
    load = Load(texts.count, texts.tokens, seed)
    with ExitStack() as stack:
        costs = StepCosts(session, load, stack)
        share = replace(limit, seconds=_SEARCH_SHARE * limit.seconds)
        tried = dict(placements) if placements is not None else _search(costs, share, candidates, seed, progress)
        costs.placements = [one for placement in tried.values() for one in placement.every]
        if placements is None:
            costs.divide(session)
        trials = list[Trial]()
        for number, (name, placement) in enumerate(tried.items()):
            report("opening servers", number / len(tried))
            trials += open_trials(session, name, placement, load, stack)
        costs.until = clock.now() + _PROFILE_SHARE * max(0.0, until - clock.now())
        for number, trial in enumerate(trials):
            report("predicting", number / len(trials))
            costs.predict(trial)
        return _measured(session, load, trials, until, seed, progress)


def _search(
    costs: StepCosts, budget: Budget, candidates: Candidates | Sequence[str | Placer], seed: int, progress: Progress | None
) -> dict[str, Placement]:
    """Search for placements by the time of steps; return the best splits, single device, plain devices, and given placements.

    Each device may have a step in flight, and the texts are divided among these steps.
    """
    session, load = costs.session, costs.load
    devices = len(session.cluster)
    stepping = costs.at(math.ceil(load.texts / devices), 1) or session
    found = stepping.optimize(
        "throughput", budget=budget, candidates=candidates, in_flight=devices, seed=seed, progress=progress
    )
    if found.interrupted:
        raise KeyboardInterrupt
    able = [one for one in found.candidates if one.failed is None]
    several = sorted((one for one in able if len(one.placement.used) > 1), key=lambda one: one.measured is None)
    singles = [one for one in able if one.placer == "single"]
    chosen = [*several[:_MAX_SPLITS], *(one for one in singles if one.plain), *[one for one in singles if not one.plain][:1]]
    chosen += [one for one in able if one.given and one not in chosen]
    return {one.name: one.placement for one in chosen} or {found.chosen.name: found.placement}


def _measured(
    session: Session, load: Load, trials: Sequence[Trial], until: float, seed: int, progress: Progress | None
) -> TextsOptimized:
    """Have the most promising trials generate texts in turns, and choose."""
    able = [one for one in trials if one.failed is None]
    if not able:
        raise _nothing_generates(trials)
    raced = _promising(able, load)
    load.tokens = _answer(raced, load, until - clock.now())

    def turn(trial: Trial) -> Callable[[], float]:
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


def _nothing_generates(trials: Sequence[Trial]) -> ExecutionError:
    reasons = (f"{one.name}: {one.failed}" for one in trials if one.failed is not None)
    return ExecutionError(" ".join(["No placement can generate texts.", *reasons]))


def _promising(able: Sequence[Trial], load: Load) -> list[Trial]:
    """Return the trials that take turns: each placement in chunks of the best predicted size, the best split in others, too."""

    def key(trial: Trial) -> tuple[bool, float]:
        simulated = trial.simulated
        return simulated is None, abs(trial.chunk - CHUNK) if simulated is None else load.seconds(simulated)

    placements = {one.of: min((other for other in able if other.of == one.of), key=key) for one in able}
    first = sorted(placements.values(), key=lambda one: load.seconds(one.turn_s))
    split = next((one for one in first if one.devices > 1), first[0])
    others = sorted((one for one in able if one not in first and one.of == split.of), key=key)
    return [*first, *others][:_MAX_SETTINGS]


def _answer(trials: Sequence[Trial], load: Load, left: float) -> int:
    """Return how many tokens each text may have, so that all trials have enough turns in ``left`` seconds."""
    prompts, each = (sum(one.turn_s[i] for one in trials) for i in (0, 1))
    fit = (left / FEWEST - prompts) / each if each > 0 else math.inf
    return int(min(load.tokens, max(_MIN_TOKENS, fit)))
