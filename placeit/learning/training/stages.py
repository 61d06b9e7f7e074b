"""Stages of training: problems, length, method and options."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from placeit.core.errors import UsageError
from placeit.core.nearest import nearest
from placeit.core.problem import CostFunction
from placeit.core.registry import check_options, parse_options
from placeit.learning.agent import Agent, Explorer, ProblemInstance, Taught
from placeit.learning.training.baselines import Baseline, find_baseline

__all__ = [
    "MEASURED",
    "SIMULATED",
    "CostFactory",
    "Draw",
    "Stage",
    "Staged",
    "Timed",
    "check_stages",
    "default_stages",
    "parse_stage",
    "scale_updates",
]

Draw: TypeAlias = Callable[[np.random.Generator, int, float], Sequence[ProblemInstance]]
"""``draw(rng, count, progress) -> instances`` to learn from; ``progress`` is the share of the stage that is done, in [0, 1).

What it returns depends on its arguments alone, or training could not be resumed with the same result. It may return fewer
instances than asked for; none at all ends the stage (a budget is spent).
"""

CostFactory: TypeAlias = Callable[[ProblemInstance], CostFunction]
"""Makes the cost function of an instance. A cost of NaN could not be measured; it is left out and asked for again later."""


@runtime_checkable
class Timed(Protocol):
    """A :data:`CostFactory` whose costs take time, and that can be told when to end.

    Attributes:
        deadline: time by :func:`placeit.core.clock.now` after which nothing is measured; a cost that is not known by then is
            NaN. Training sets it: to ``inf`` in a stage without ``seconds``.
        spare: share of a stage's ``seconds``, in [0, 1), that is to be kept for the time after training.
    """

    deadline: float
    spare: float

    def __call__(self, instance: ProblemInstance) -> CostFunction:
        """Return the cost function of an instance."""
        ...


SIMULATED, MEASURED = "simulated", "measured"
"""Built-in costs of a stage: the instances' own cost functions, and runs on devices, if training is given such a cost."""

_LARGEST_OPTIONS = {
    "updates": 10**9,
    "problems": 10_000,
    "episodes": 10_000,
    "epochs": 10_000,
    "evaluate_every": 10**9,
    "patience": 10**9,
}
"""Greatest numbers that make sense: problems and episodes of an update are in memory at once."""


@dataclass(frozen=True)
class Stage:
    """A part of training.

    Attributes:
        draw: gives the problems and their cost functions; whether these get harder, training does not know.
        updates: how often the agent plays and learns, at most.
        seconds: wall time after which the stage ends, whatever its number of updates; None for no limit. Costs that accept a
            deadline (:class:`Timed`) measure nothing after it, and decisions that depend on missing costs are dropped. With
            other costs, the update under way and the last evaluation are completed. Schedules depend on the number of updates.
        kind: ``reinforce``, or a way that the agent's ``loss`` knows, such as ``imitation``.
        teacher: the teacher to imitate, one of the agent's ``teachers`` for this kind
            (:class:`placeit.learning.agent.Taught`); None for the first of them.
        cost: cost by which placements are valued in training and in evaluation: ``simulated``, the instances' own cost
            functions; the name of one of the costs that training is given, such as ``measured``; or a function that makes the
            cost function of an instance. Costs that are not simulated are kept in a journal, and looked up when needed again.
        problems: problems of an update.
        episodes: episodes of each problem in an update.
        epochs: gradient steps over the episodes of an update, each scored again by the weights as they are then (HSDAG: 4); for
            ``reinforce``.
        learning_rate: of Adam, at the start.
        schedule: how the learning rate goes from its start to its end over the stage.
        final_learning_rate: where it ends; without meaning for ``constant``.
        clip: longest gradient (2-norm over all weights); None for any.
        gamma: discount of rewards per step.
        reward_to_go: a decision counts as the discounted rewards from its step on; False for its own reward alone, weighed by
            gamma^t (HSDAG, Eq. 14, with t from 0).
        discount_steps: weigh the decision at step t by gamma^t, too.
        entropy: weight of the entropy of decisions, at the start; in favour of exploring.
        final_entropy: where it ends, linearly; None to stay.
        explore: how much an :class:`placeit.learning.agent.Explorer` explores, at the start.
        final_explore: where it ends, linearly; None to stay.
        baseline: values that are subtracted from returns: a name in ``BASELINES`` of
            :mod:`placeit.learning.training.baselines`, or a function.
        normalize: bring the advantages of an update to deviation 1, and to mean 0 unless the baseline is ``moving``; the
            advantages of a single episode stay as they are if they are all equal.
        evaluate_every: updates between evaluations.
        patience: evaluations without a new best after which the stage ends early; None to go on.

    Raises:
        UsageError: a value out of its range.
    """

    draw: Draw = field(repr=False)
    updates: int = 200
    kind: str = "reinforce"
    problems: int = 16
    episodes: int = 1
    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    final_learning_rate: float = 0.0
    clip: float | None = 1.0
    gamma: float = 0.97
    discount_steps: bool = False
    entropy: float = 0.0
    final_entropy: float | None = None
    explore: float = 0.0
    final_explore: float | None = None
    baseline: str | Baseline = "batch"
    normalize: bool = True
    evaluate_every: int = 20
    patience: int | None = None
    cost: str | CostFactory = SIMULATED
    seconds: float | None = None
    epochs: int = 1
    reward_to_go: bool = True
    teacher: str | None = None

    def __post_init__(self) -> None:
        for name, most in _LARGEST_OPTIONS.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"'{name}' of a training stage is {value}; it must be at least 1.")
            if value is not None and value > most:
                raise UsageError(f"'{name}' of a training stage must be at most {most:,}; got more.")
        for name in ("learning_rate", "final_learning_rate", "clip", "entropy", "final_entropy"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"'{name}' of a training stage is {value}; it must be finite and not negative.")
        for name in ("gamma", "explore", "final_explore"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise UsageError(f"'{name}' of a training stage is {value}; it must be in [0, 1].")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UsageError(f"'seconds' of a training stage is {self.seconds}; it must be positive and finite.")
        if self.epochs > 1 and self.kind != "reinforce":
            raise UsageError(
                f"'epochs' of a training stage is for 'reinforce'; '{self.kind}' has no episodes to go over again."
            )
        if self.discount_steps and not self.reward_to_go:
            raise UsageError("A training stage without 'reward_to_go' discounts its steps already: leave out 'discount_steps'.")
        if self.schedule not in (known := ("constant", "linear", "cosine")):
            hint = nearest(self.schedule, known)
            raise UsageError(f"There is no schedule '{self.schedule}'; the schedules are {', '.join(known)}{hint}.")
        if isinstance(self.baseline, str):
            find_baseline(self.baseline)

    def learning_rate_at(self, progress: float) -> float:
        """Return the learning rate after a share of the stage."""
        left = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[self.schedule]
        return self.final_learning_rate + (self.learning_rate - self.final_learning_rate) * left

    def entropy_at(self, progress: float) -> float:
        """Return the weight of the entropy after a share of the stage."""
        return _linear(self.entropy, self.final_entropy, progress)

    def explore_at(self, progress: float) -> float:
        """Return how much to explore after a share of the stage."""
        return _linear(self.explore, self.final_explore, progress)

    @property
    def cost_name(self) -> str:
        """Name of the cost; of a function, where it is defined."""
        return self.cost if isinstance(self.cost, str) else _name(self.cost)

    def to_dict(self) -> dict[str, bool | int | float | str | None]:
        """Return all fields except ``draw`` in JSON-compatible form; functions by name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "draw"}
        values["cost"] = self.cost_name
        if callable(self.baseline):
            values["baseline"] = _name(self.baseline)
        return values


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _linear(start: float, end: float | None, progress: float) -> float:
    return start if end is None else start + (end - start) * progress


@runtime_checkable
class Staged(Protocol):
    """An agent with its own default stages."""

    def default_stages(self, draw: Draw) -> Sequence[Stage]:
        """Return stages for problems from ``draw``."""
        ...


def default_stages(agent: Agent, draw: Draw) -> Sequence[Stage]:
    """Return an agent's default stages; one stage of REINFORCE if it defines none."""
    if isinstance(agent, Staged):
        return agent.default_stages(draw)
    return [Stage(draw, learning_rate=3e-3, schedule="cosine", final_learning_rate=3e-4)]


def check_stages(agent: Agent, stages: Sequence[Stage]) -> None:
    """Raise UsageError if a stage needs exploration or a teacher that its agent does not have."""
    teachers = agent.teachers if isinstance(agent, Taught) else {}
    for number, stage in enumerate(stages, 1):
        if (stage.explore or stage.final_explore) and not isinstance(agent, Explorer):
            raise UsageError(f"The agent '{agent.name}' does not explore; leave 'explore' out of its training stages.")
        if stage.teacher is None or stage.teacher in teachers.get(stage.kind, ()):
            continue
        listed = "; ".join(f"for {kind}, {', '.join(names)}" for kind, names in teachers.items())
        known = f"its teachers are: {listed}" if listed else "it has none to choose from: leave 'teacher' out"
        raise UsageError(
            f"Stage {number} ({stage.kind}) names the teacher '{stage.teacher}', which the agent '{agent.name}' does not have; "
            f"{known}."
        )


def scale_updates(stages: Sequence[Stage], updates: int) -> list[Stage]:
    """Return the stages, scaled to a total number of updates in the same proportions, at least one update per stage."""
    if updates > _LARGEST_OPTIONS["updates"]:
        raise UsageError(f"A training has at most {_LARGEST_OPTIONS['updates']:,} updates; more were asked for.")
    whole = sum(stage.updates for stage in stages)
    return [dataclasses.replace(stage, updates=max(1, round(updates * stage.updates / whole))) for stage in stages]


def parse_stage(text: str, draw: Draw) -> Stage:
    """Make a stage from ``kind`` or ``kind:field=value,field=value``, as on the command line.

    Raises:
        UsageError: the text has another form, there is no such field, or a value is out of its range.
    """
    hints = typing.get_type_hints(Stage)
    types = {field.name: _plain(hints[field.name]) for field in dataclasses.fields(Stage) if field.name not in ("draw", "kind")}
    kind, options = parse_options("stage", text, lambda _: types)
    check_options("stage", text, options, types)
    return Stage(draw, kind=kind, **options)


def _plain(hint: Any) -> type:
    """Return the type in which a value is parsed: bool, int or float if the hint allows one of them, else str."""
    return next((kind for kind in (bool, int, float) if hint is kind or kind in typing.get_args(hint)), str)
