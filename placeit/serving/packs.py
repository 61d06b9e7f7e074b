"""Packs: tokens of several sequences that one run of a decoder computes, where each slot keeps its state in blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.slots import Slot
from placeit.serving.answers import Outputs, Pending
from placeit.serving.convoy import BEAMS, MASK, TOKENS

__all__ = ["Pack", "Packs"]


class Pack:
    """Requests of several sequences that an executor runs as one; an item of :class:`placeit.runtime.feed.Feed`.

    Args:
        place: slot that runs them.
        requests: each of another sequence, with its slot.

    Attributes:
        inputs: of the run, by name: the tokens of all requests, one after the other.
        slot: number of the slot that runs them.
        rows: number of the requests.
    """

    on: Literal["host"] = "host"

    def __init__(self, place: Slot, requests: Sequence[tuple[Pending, Slot]]) -> None:
        self.place, self.slot, self.rows = place, place.number, len(requests)
        self.requests = [request for request, _ in requests]
        each = [request.inputs for request in self.requests]
        first, self._sizes = each[0], [one[TOKENS].shape[1] for one in each]
        self.inputs = {name: np.concatenate([one[name] for one in each], 1) for name in first if name not in (MASK, BEAMS)}
        self.inputs[MASK] = np.ones((1, sum(self._sizes)), first[MASK].dtype)
        if BEAMS in first:
            self.inputs[BEAMS] = first[BEAMS]
        place.texts = [(slot, one[MASK], size) for (_, slot), one, size in zip(requests, each, self._sizes, strict=True)]

    def divided(self, outputs: Mapping[str, NDArray[Any]]) -> list[Outputs]:
        """Return the outputs of each request, as views: a row, if they are of its last token, or else a row of each token."""
        rows, ends = self.rows, np.cumsum(self._sizes)
        places = [*zip(ends - self._sizes, ends, strict=True)]
        return [
            {name: value[row : row + 1] if len(value) == rows else value[:, first:end] for name, value in outputs.items()}
            for row, (first, end) in enumerate(places)
        ]


class Packs:
    """The packs of a replica.

    Args:
        executor: of the replica.
        longest: most tokens of a pack.
    """

    def __init__(self, executor: PlanExecutor, longest: int) -> None:
        self._executor, self.longest = executor, longest
        self._free, self._flying = list[Slot](), list[Pack]()

    def choose(self, waiting: Sequence[Pending], most: int) -> list[Pending]:
        """Return the waiting requests to run next, at most ``most``; the first has waited longest."""
        found, room = list[Pending](), self.longest
        for request in waiting:
            tokens = request.inputs[TOKENS].shape[1]
            if len(found) < most and tokens <= room:
                found.append(request)
                room -= tokens
        return found

    def make(self, requests: Sequence[tuple[Pending, Slot]]) -> Pack:
        """Return requests, each with the slot of its sequence, as one item. Raises DeviceError."""
        made = Pack(self._free.pop() if self._free else self._executor.open_slot(), requests)
        self._flying.append(made)
        return made

    def land(self, pack: Pack) -> None:
        """End the run of a pack."""
        if pack in self._flying:
            self._flying.remove(pack)
            pack.place.texts = ()
            self._free.append(pack.place)

    def put_back(self, requests: Collection[Pending]) -> None:
        """End the packs that contain any of the requests."""
        for pack in [pack for pack in self._flying if any(request in requests for request in pack.requests)]:
            self.land(pack)
