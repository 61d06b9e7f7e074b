"""Stages of training, with their options."""

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

The result must depend on the arguments alone, so that training can be resumed with the same result. It may have fewer than
``count`` instances; an empty result ends the stage, for example because a budget is spent.
"""

CostFactory: TypeAlias = Callable[[ProblemInstance], CostFunction]
"""Returns the cost function of an instance. A cost of NaN means not measured: it is left out, and measured again if needed."""


@runtime_checkable
class Timed(Protocol):
    """A :data:`CostFactory` whose costs take time to measure, with a deadline.

    Attributes:
        deadline: time by :func:`placeit.core.clock.now` after which nothing is measured; a cost that is not known by then is
            NaN. Training sets it, to ``inf`` in a stage without ``seconds``.
        spare: share of a stage's ``seconds``, in [0, 1), that training leaves for the time after it.
    """

    deadline: float
    spare: float

    def __call__(self, instance: ProblemInstance) -> CostFunction:
        """Return the cost function of an instance."""
        ...


SIMULATED, MEASURED = "simulated", "measured"
"""Names of costs: the instances' own cost functions, and, if ``train`` is given a factory with this name, measured runs."""

_MAX_OPTIONS = {
    "updates": 10**9,
    "problems": 10_000,
    "episodes": 10_000,
    "epochs": 10_000,
    "evaluate_every": 10**9,
    "patience": 10**9,
}
"""Maximum values; all problems and episodes of an update are in memory at once."""


@dataclass(frozen=True)
class Stage:
    """A stage of training: one training method with its problems and options.

    Attributes:
        draw: draws the problems, with their cost functions.
        updates: maximum number of updates.
        seconds: wall time after which the stage ends, whatever its number of updates; None for no limit. Costs with a deadline
            (:class:`Timed`) measure nothing after it, and decisions that depend on missing costs are dropped. With other costs,
            the current update and the last evaluation are completed. Schedules depend on the number of updates.
        kind: training method: ``reinforce``, or a method of the agent's ``loss``, such as ``imitation``.
        teacher: the teacher to imitate, one of the agent's ``teachers`` for this method
            (:class:`placeit.learning.agent.Taught`); None for the first of them.
        cost: cost by which placements are valued in training and in evaluation: ``simulated`` for the instances' own cost
            functions; the name of a factory that ``train`` is given, such as ``measured``; or a factory. Costs that are not
            simulated are recorded in a journal, and not measured again.
        problems: problems per update.
        episodes: episodes of each problem in an update.
        epochs: gradient steps over the episodes of an update, which are scored again for each step (HSDAG: 4); only for
            ``reinforce``.
        learning_rate: initial learning rate of Adam.
        schedule: course of the learning rate over the stage.
        final_learning_rate: final learning rate; ignored if the schedule is ``constant``.
        clip: maximum norm of the gradient (2-norm over all weights); None for no limit.
        gamma: discount factor of rewards per step.
        reward_to_go: whether the value of a decision is the discounted sum of the rewards from its step on; False for its own
            reward alone, times gamma^t (HSDAG, Eq. 14, with t from 0).
        discount_steps: whether the decision at step t is also weighted by gamma^t.
        entropy: initial weight of the entropy of decisions, which encourages exploration.
        final_entropy: final weight of the entropy, reached linearly; None for the initial weight.
        explore: initial degree of exploration of an :class:`placeit.learning.agent.Explorer`.
        final_explore: final degree of exploration, reached linearly; None for the initial degree.
        baseline: values that are subtracted from returns: a name in ``BASELINES`` of
            :mod:`placeit.learning.training.baselines`, or a function.
        normalize: whether the advantages of an update are scaled to deviation 1, and shifted to mean 0 unless the baseline is
            ``moving``. Equal advantages of a single episode stay as they are.
        evaluate_every: updates between evaluations.
        patience: evaluations without a new best after which the stage ends early; None for no early end.

    Raises:
        UsageError: a value is out of its range.
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
        for name, maximum in _MAX_OPTIONS.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"'{name}' of a training stage is {value}; it must be at least 1.")
            if value is not None and value > maximum:
                raise UsageError(f"'{name}' of a training stage must be at most {maximum:,}; got more.")
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
        """Return the learning rate when the share ``progress`` of the stage is done."""
        left = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[self.schedule]
        return self.final_learning_rate + (self.learning_rate - self.final_learning_rate) * left

    def entropy_at(self, progress: float) -> float:
        """Return the weight of the entropy when the share ``progress`` of the stage is done."""
        return _linear(self.entropy, self.final_entropy, progress)

    def explore_at(self, progress: float) -> float:
        """Return the degree of exploration when the share ``progress`` of the stage is done."""
        return _linear(self.explore, self.final_explore, progress)

    @property
    def cost_name(self) -> str:
        """Name of the cost; for a factory, its qualified name."""
        return self.cost if isinstance(self.cost, str) else _name(self.cost)

    def to_dict(self) -> dict[str, bool | int | float | str | None]:
        """Return all fields except ``draw`` in JSON-compatible form; functions by name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "draw"}
        values["cost"] = self.cost_name
        if callable(self.baseline):
            values["baseline"] = _name(self.baseline)
        return values


def _name(function: Callable[..., Any]) -> str:
    """Return ``module:qualified.name`` of a function, or of a callable object's class."""
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
    """Return stages with ``updates`` updates in total, in the same proportions, at least one update per stage."""
    if updates > _MAX_OPTIONS["updates"]:
        raise UsageError(f"A training has at most {_MAX_OPTIONS['updates']:,} updates; more were asked for.")
    total = sum(stage.updates for stage in stages)
    return [dataclasses.replace(stage, updates=max(1, round(updates * stage.updates / total))) for stage in stages]


def parse_stage(text: str, draw: Draw) -> Stage:
    """Make a stage from ``kind`` or ``kind:field=value,field=value``, as on the command line.

    Raises:
        UsageError: the text has another form, a field does not exist, or a value is out of its range.
    """
    hints = typing.get_type_hints(Stage)
    fields = [field.name for field in dataclasses.fields(Stage) if field.name not in ("draw", "kind")]
    types = {name: _parsed_type(hints[name]) for name in fields}
    kind, options = parse_options("stage", text, lambda _: types)
    check_options("stage", text, options, types)
    return Stage(draw, kind=kind, **options)


def _parsed_type(hint: Any) -> type:
    """Return the type of parsed values: bool, int or float if the hint allows one of them, else str."""
    return next((kind for kind in (bool, int, float) if hint is kind or kind in typing.get_args(hint)), str)
