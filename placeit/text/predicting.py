"""Prediction of how many tokens per second a placement generates, by the simulator."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

import numpy as np

from placeit.core import clock
from placeit.core.errors import PlaceitError, UsageError
from placeit.core.placement import Placement
from placeit.core.sizes import SizeRange
from placeit.planning.segments import Plan
from placeit.serving.convoy import MASK
from placeit.session import Session
from placeit.simulator.depth import served
from placeit.text.trials import Load, Trial
from placeit.workbench.options import Constraints, Inputs

__all__ = ["StepCosts"]


class StepCosts:
    """Sessions with the costs of steps of several numbers of texts, and of chunks of several numbers of tokens.

    Attributes:
        session: the decoder on its devices.
        load: the texts.
        placements: placements that are predicted, each replica by itself.
        until: when no more costs are measured, by :func:`placeit.core.clock.now`.
    """

    def __init__(self, session: Session, load: Load, stack: ExitStack) -> None:
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

    def predict(self, trial: Trial) -> None:
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

    def _seconds(self, trial: Trial, placement: Placement, texts: float) -> tuple[float, float] | None:
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
