"""Joined steps: single tokens of several texts that one run of a decoder computes.

Joining is right if each row of the outputs depends on the same row of inputs and state alone, and if the attention mask hides
columns of the state. Shapes cannot show this, so joined steps are compared with single ones when a server starts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Model
from placeit.core.errors import PlaceitError
from placeit.measuring.check import OutputDifference
from placeit.runtime.feed import Bell
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.answers import Outputs, Pending, interruption
from placeit.serving.convoy import BEAMS, KNOWN, MASK, TOKENS, Convoy, row_of, step_inputs
from placeit.serving.line import Line
from placeit.serving.packs import Pack, Packs

__all__ = ["Joined", "Step", "Stepping", "Steps"]

_LONGEST_RUN = 256  # tokens that are joined in one run, where caches are in blocks
_PADDING = 64  # columns of padding for each row that are always accepted, beyond as many as there are tokens
_PROMPTS = (3, 6)  # tokens of the sample texts
_STEPS = 3  # of the sample texts


@dataclass(frozen=True)
class Steps:
    """Rules by which a server joins the steps of sequences.

    Attributes:
        tokens: sample tokens, ``int[N]``.
        axes: the dimension that grows, by the name of each variable.
        most: most texts in a step.
        tolerance: largest relative difference of right outputs.
        longest: most tokens of a run that are joined, where caches are in blocks.
        why: why no steps are joined; None if they are.
    """

    tokens: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    axes: Mapping[str, int] = field(default_factory=dict)
    most: int = 0
    tolerance: float = 0.0
    longest: int = 1
    why: str | None = None

    @classmethod
    def of(cls, model: Model, tolerance: float) -> Steps | None:
        """Return the rules for a model; None if it is no decoder with state."""
        inputs = {spec.name: spec for spec in model.inputs}
        if TOKENS not in inputs or not model.states:
            return None
        unknown = [name for name, spec in inputs.items() if name not in KNOWN or len(spec.shape) > len(("batch", "tokens"))]
        rows = {name: spec.limits[0] if spec.limits else (1, 1) for name, spec in inputs.items()}
        fixed = [name for name, (low, high) in rows.items() if low > 1 or high < low + 1]
        if MASK not in inputs:
            return cls(why=f"the model has no input '{MASK}'")
        if unknown:
            return cls(why=f"the meaning of its input '{unknown[0]}' is not known")
        if fixed:
            return cls(why=f"the first size of its input '{fixed[0]}' is not open, as with --context and without --batch")
        limits, most = inputs[TOKENS].limits, min(high for _, high in rows.values())
        longest = _LONGEST_RUN if limits is None else min(_LONGEST_RUN, limits[-1][1])
        axes = dict[str, int]()
        for state in model.states:
            grows = [axis for axis, (low, high) in enumerate(state.limits or ()) if low < high]
            if len(grows) != len(("batch", "tokens")) or grows[0] != 0:
                return cls(why=f"its state '{state.name}' does not have a row for each text and a size that grows with it")
            axes[state.name.partition("/id=")[0]] = grows[1]
        return cls(np.ravel(model.random_inputs()[TOKENS]), axes, most, tolerance, longest)


class Step:
    """Steps of several sequences that an executor runs as one; an item of :class:`placeit.runtime.feed.Feed`.

    Args:
        convoy: the sequences; they may be more than have a step.
        requests: the steps, each of another sequence.

    Attributes:
        inputs: of the run, by name.
        slot: number of the slot that has the state.
        rows: number of the steps.
    """

    on: Literal["host"] = "host"

    def __init__(self, convoy: Convoy, requests: Sequence[Pending]) -> None:
        self.convoy, self.requests, self.rows = convoy, requests, len(requests)
        self.steps = {line: request.inputs for request in requests if (line := request.line) is not None}
        self.inputs, self.slot = convoy.inputs(self.steps), convoy.slot.number

    def divided(self, outputs: Mapping[str, NDArray[Any]]) -> list[Outputs]:
        """Return the outputs of each request."""
        places = [self.convoy.lines.index(line) for line in self.steps]
        return [{name: np.array(value[place : place + 1]) for name, value in outputs.items()} for place in places]


Joined: TypeAlias = Step | Pack
"""Steps of several sequences that run as one."""


class Stepping:
    """Joins the steps of a replica's sequences. Methods are called on the replica's thread.

    Steps are joined if they wait when a run may begin; no step waits for others. There may be a run of steps in flight for each
    device. Where slots keep states in blocks, steps have any number of tokens, up to a bound for a run. Elsewhere, they have
    one, and states of sequences that step together are in a convoy.

    Args:
        steps: the rules.
        executor: of the replica; idle.

    Attributes:
        most: most texts in a step; 0 if none are joined.
        why: why no steps are joined; None if they are.
    """

    def __init__(self, steps: Steps, executor: PlanExecutor) -> None:
        self._executor, self._axes = executor, steps.axes
        self._devices = len({segment.device for segment in executor.plan.programs})
        self.convoys: list[Convoy] = []
        self.most, self.why = steps.most, steps.why
        self._packs = Packs(executor, steps.longest) if executor.keeps_blocks else None
        if self.why is None:
            self.why = "a device compiles a program for each size" if executor.by_size else _Trial(self, steps, executor).why()
        if self.why is not None:
            self.most = 0

    def stop(self, why: str) -> None:
        """Join no more steps; with the lock."""
        self.most, self.why = 0, why

    def may_join(self, request: Pending) -> bool:
        """Return whether a request waits for others of its sequence in flight, as it may then be a step."""
        return self.most > 0 and not request.single and request.inputs[TOKENS].shape == (1, 1)

    def is_step(self, line: Line, request: Pending) -> bool:
        """Return whether a request is a step that may be joined."""
        shapes = {name: value.shape for name, value in request.inputs.items()}
        tokens = math.prod(shapes[TOKENS])
        return (
            self.most > 0
            and not request.single
            and tokens <= (1 if self._packs is None else self._packs.longest)
            and not (line.slot is None or (line.fresh and self._packs is None))
            and line.lost is None
            and request.resets == line.begun
            and all(shape[:1] == (1,) for shape in shapes.values())
            and shapes[MASK] == (1, line.tokens + tokens)
            and not (BEAMS in request.inputs and request.inputs[BEAMS].any())
        )

    def choose(
        self, waiting: Sequence[Pending], running: int, lines: int, fits: Callable[[Counter[str]], bool]
    ) -> list[Pending]:
        """Return the steps that run next, as one; the first has waited longest. With the lock.

        Args:
            waiting: steps, in order.
            running: number of runs of steps in flight.
            lines: number of sequences of the replica, which its devices share.
            fits: returns whether there is memory for some more bytes of state, by device name.
        """
        waiting = [one for one in waiting if (convoy := _convoy(one)) is None or convoy.free]
        if not waiting or running >= self._devices:
            return []
        first = waiting[0]
        most = min(self.most, math.ceil(lines / self._devices))
        if self._packs is not None:
            return self._packs.choose(waiting, most)

        def joins(rows: Sequence[Line]) -> bool:
            return len(rows) <= most and _alike([line.tokens for line in rows]) and fits(_padding(rows))

        convoy, rows = _convoy(first), [_line(first)]
        if convoy is not None:
            rows = [*convoy.lines]
        elif (largest := _common(waiting)) is not None and joins([*largest.lines, *rows]):
            convoy, rows = largest, [*largest.lines, *rows]
        chosen = [first, *(one for one in waiting[1:] if convoy is not None and _convoy(one) is convoy)]
        for one in waiting[1:]:
            if one not in chosen and joins([*rows, _line(one)]):
                chosen.append(one)
                rows.append(_line(one))
        return chosen

    def begin(self, requests: Sequence[Pending]) -> None:
        """Keep the convoys of sequences for a run that is prepared; with the lock."""
        for request in requests:
            if request.step and (convoy := _convoy(request)) is not None:
                convoy.flying = True

    def put_back(self, requests: Sequence[Pending], why: PlaceitError | None) -> None:
        """Let other runs use the convoys of requests that have not ended, or lose them if runs have begun; with the lock."""
        if self._packs is not None:
            self._packs.put_back(requests)
        for convoy in [*self.convoys]:
            mine = [request for request in requests if request.line in convoy.lines]
            if mine and (not convoy.sound or any(request.started and request.step for request in mine)):
                self.lose([convoy], why or interruption())
            elif mine:
                convoy.land()

    def prepare(self, requests: Sequence[Pending]) -> Pending | Joined:
        """Return steps as one item to run.

        Raises an error if their states cannot be joined. States are then unchanged, except in convoys that are not sound.
        """
        convoy = _common(requests)
        if convoy is None and len(requests) == 1:
            return requests[0]
        if self._packs is not None:
            return self._packs.make([(one, slot) for one in requests if (slot := _line(one).slot) is not None])
        sources = {other for request in requests if (other := _convoy(request)) not in (None, convoy)}
        try:
            made = convoy or self._opened()
            steps = {_line(request): request.inputs for request in requests}
            self._gather(made, steps)
            return Step(made, requests)
        finally:
            for source in sources:
                source.land()

    def _opened(self) -> Convoy:
        made = Convoy(self._executor.open_slot(), self._axes, self._close)
        made.flying = True
        self.convoys.append(made)
        return made

    def _close(self, convoy: Convoy) -> None:
        self.convoys.remove(convoy)
        self._executor.close_slot(convoy.slot)

    def _gather(self, convoy: Convoy, steps: Mapping[Line, Arrays]) -> None:
        """Have a convoy hold the states of all sequences that step, and of no sequence that is to leave."""
        leaving = convoy.leaving(steps)
        joining = [line for line in steps if line.convoy is not convoy]
        if not leaving and not joining and not convoy.is_wasteful(steps):
            return
        try:
            kept = [line for line in convoy.lines if line not in leaving]
            before = dict(zip(convoy.lines, convoy.rows(convoy.lines), strict=True))
            rows = [before[line] for line in kept] + [_row(line) for line in joining]
            for line in leaving:
                line.separate()
            convoy.set_rows([*kept, *joining], rows)
        except BaseException:
            if not convoy.lines:
                self._close(convoy)
            raise
        for line in joining:
            line.leave()
            line.convoy = convoy
            if line.slot is not None:
                line.slot.reset_state()

    def ended(self, step: Joined, failure: PlaceitError | None = None) -> None:
        """Record that a run has ended, with the ``failure`` if it has failed after it had begun; with the lock."""
        if isinstance(step, Pack):
            assert self._packs is not None  # noqa: S101
            self._packs.land(step)
        elif failure is not None:
            self.lose([step.convoy], failure)
        else:
            step.convoy.ran(step.steps)
            step.convoy.land()

    def lose(self, convoys: Sequence[Convoy], why: PlaceitError) -> None:
        """Record that the states in convoys are not known; with the lock."""
        for convoy in convoys:
            convoy.land()
            for line in [*convoy.lines]:
                line.failed(why)
                convoy.leave(line)


def _line(request: Pending) -> Line:
    assert request.line is not None  # noqa: S101
    return request.line


def _convoy(request: Pending) -> Convoy | None:
    convoy = _line(request).convoy
    return convoy if isinstance(convoy, Convoy) else None


def _common(requests: Sequence[Pending]) -> Convoy | None:
    """Return the convoy with the most of some requests."""
    found = Counter(convoy for request in requests if (convoy := _convoy(request)) is not None)
    return found.most_common(1)[0][0] if found else None


def _row(line: Line) -> dict[str, NDArray[Any]]:
    if isinstance(line.convoy, Convoy):
        return line.convoy.rows([line])[0]
    assert line.slot is not None  # noqa: S101
    return row_of(line.slot)


def _alike(lengths: Sequence[int]) -> bool:
    """Return whether rows of some lengths may be padded to the longest."""
    return len(lengths) * max(lengths) <= 2 * sum(lengths) + _PADDING * len(lengths)


def _padding(lines: Sequence[Line]) -> Counter[str]:
    """Return the bytes that sequences need more if all are padded to the largest, by device name."""
    devices = {device for line in lines for device in line.bytes}
    largest = {device: max(line.bytes[device] for line in lines) for device in devices}
    return Counter({device: size * len(lines) - sum(line.bytes[device] for line in lines) for device, size in largest.items()})


@dataclass
class _Run:
    """A single run, with the interface of an item of a feed."""

    inputs: Arrays
    slot: int
    on: Literal["host"] = "host"


class _Once:
    """A feed (:class:`placeit.runtime.feed.Feed`) of a single run."""

    slots = None

    def __init__(self, item: _Run | Joined) -> None:
        self.bell = Bell()
        self._item: _Run | Joined | None = item
        self.outputs: Outputs = {}
        self.error: PlaceitError | None = None

    def take(self, *, room: bool) -> _Run | Joined | None:  # noqa: ARG002
        item, self._item = self._item, None
        return item

    def patience(self) -> float:
        return math.inf

    def stays(self) -> bool:
        return False

    def at(self, number: int) -> None:  # noqa: ARG002
        return None

    def ended(self, item: object, outputs: Mapping[str, NDArray[Any]], ran: object, moved: object) -> None:  # noqa: ARG002
        self.outputs = {name: np.array(value) for name, value in outputs.items()}

    def failed(self, item: object, error: PlaceitError, *, begun: bool = True) -> None:  # noqa: ARG002
        self.error = error


class _Trial:
    """Sample texts of different lengths, stepped alone and joined."""

    def __init__(self, stepping: Stepping, steps: Steps, executor: PlanExecutor) -> None:
        self._stepping, self._steps, self._executor = stepping, steps, executor
        self._specs = executor.inputs

    def why(self) -> str | None:
        """Return why steps cannot be joined; None if the outputs of joined steps are right."""
        try:
            with ExitStack() as stack:
                return self._compared(stack)
        except (PlaceitError, MemoryError, RuntimeError, LookupError, ValueError, TypeError) as error:
            return f"joined steps cannot be run: {error}"

    def _compared(self, stack: ExitStack) -> str | None:
        lines = [Line(number) for number in range(1, len(_PROMPTS) + 1)]
        for line in lines:
            line.slot = self._executor.open_slot()
            stack.callback(self._executor.close_slot, line.slot)
            stack.callback(line.leave)
        first, second = lines
        alone = dict[Line, list[Outputs]]()
        for line, prompt in zip(lines, _PROMPTS, strict=True):
            self._alone(line, prompt)
            assert line.slot is not None  # noqa: S101
            states, tokens = line.slot.states(), line.tokens
            alone[line] = [self._alone(line, 1) for _ in range(_STEPS)]
            line.slot.set_states(states)
            line.tokens = tokens
        rounding = self._rounding(stack, alone[second])
        done = Counter[Line]()
        for stepping in (lines, [second], lines, [first]):  # the row of the last one left is dropped by then
            if stepping == [first]:
                second.leave()
            requests = [Pending(self._inputs(line, 1), math.inf, line=line) for line in stepping]
            item = self._stepping.prepare(requests)
            for line, outputs in zip(stepping, self._outputs(item), strict=True):
                found = replace(OutputDifference.between(outputs, alone[line][done[line]]), rounding=rounding)
                if found.wrong(self._steps.tolerance) is not None:
                    return f"the outputs of joined steps differ from the outputs of single steps ({found.max_rel:.1e})"
                done[line] += 1
                line.tokens += 1
            if not isinstance(item, Pending):
                self._stepping.ended(item)
        return None

    def _outputs(self, item: Pending | Joined) -> Sequence[Outputs]:
        if not isinstance(item, Pending):
            return item.divided(self._run(item))
        slot = _line(item).slot
        assert slot is not None  # noqa: S101
        return [self._run(_Run(item.inputs, slot.number))]

    def _rounding(self, stack: ExitStack, alone: Sequence[Outputs]) -> float:
        """Return how far the outputs of single steps move if the prompt comes in two parts: in 8 bits, caches are rounded."""
        line = Line(len(_PROMPTS))
        line.slot = self._executor.open_slot()
        stack.callback(self._executor.close_slot, line.slot)
        half = _PROMPTS[-1] // 2
        for tokens in (half, _PROMPTS[-1] - half):
            self._alone(line, tokens)
        return max(OutputDifference.between(self._alone(line, 1), outputs).max_rel for outputs in alone)

    def _alone(self, line: Line, tokens: int) -> Outputs:
        assert line.slot is not None  # noqa: S101
        outputs = self._run(_Run(self._inputs(line, tokens), line.slot.number))
        line.tokens += tokens
        return outputs

    def _run(self, item: _Run | Joined) -> Outputs:
        feed = _Once(item)
        try:
            self._executor.serve(feed)
        finally:
            feed.bell.close()
        if feed.error is not None:
            raise feed.error
        return feed.outputs

    def _inputs(self, line: Line, tokens: int) -> Arrays:
        """Return inputs for the next tokens of a sample text."""
        first = _LONGEST * (line.number - 1) + line.tokens
        sample = np.resize(self._steps.tokens, _LONGEST * line.number)
        return step_inputs(sample[first : first + tokens], line.tokens, self._specs)


_LONGEST = max(_PROMPTS) + _STEPS  # tokens of a sample text
