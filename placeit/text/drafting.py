"""Speculative decoding: a small decoder proposes the next tokens of a text, and the placed decoder checks them in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from itertools import takewhile
from operator import eq

import numpy as np

from placeit.core.errors import PlaceitError
from placeit.serving.sequence import Sequence as ServedSequence
from placeit.serving.server import Answer, Outputs

__all__ = ["Draft", "Read"]

_MAX_PROPOSED = 4  # tokens that are checked in one run
_TIMED_STEPS = 8  # steps timed with and without proposals before ``pays`` is decided; the first of each is not counted

Read = Callable[[ServedSequence, Sequence[int], int, Sequence[int]], list[Answer]]
"""Function that submits tokens to a sequence: (sequence, tokens, number of earlier tokens, state columns to hide)."""


class Draft:
    """A small decoder that proposes tokens for one text at a time, while this makes generation faster.

    The first steps are timed without proposals, and the next ones with them. After that, tokens are proposed only if a token
    took less time with proposals.

    Args:
        sequence: a sequence of the small decoder's server, which runs nothing else.
        read: function that submits tokens to the small decoder.
        context: largest number of tokens in a text of the small decoder.
        vocabulary: number of tokens that both decoders know.

    Attributes:
        proposed: number of tokens that were proposed so far.
        kept: number of proposed tokens that were accepted.
        pays: whether a token takes less time with proposals; None until that is known.
    """

    def __init__(self, sequence: ServedSequence, read: Read, context: int, vocabulary: int) -> None:
        self._sequence, self._submit, self._context, self._vocabulary = sequence, read, context, vocabulary
        self.proposed = self.kept = 0
        self.pays: bool | None = None
        self._times: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
        self._tokens, self._columns = list[int](), list[int]()  # tokens in the state, and the column of each
        self._hidden = list[int]()  # columns of tokens that were rejected
        self._proposals, self._max_proposals = list[int](), 0
        self._callback: Callable[[Sequence[int]], object] | None = None

    def propose(self, tokens: Sequence[int], max_tokens: int, callback: Callable[[Sequence[int]], object]) -> bool:
        """Start to propose the next tokens of a text, and return whether that was started.

        ``callback`` is called with the proposals, on any thread, possibly before this method returns.

        Args:
            tokens: the text so far.
            max_tokens: largest number of tokens that may be proposed.
            callback: gets the proposals; fewer or none if the small decoder fails.
        """
        due = len(self._times[False]) >= _TIMED_STEPS if self.pays is None else self.pays
        self._max_proposals = min(max_tokens, _MAX_PROPOSED)
        if not due or self._max_proposals < 1 or self._callback is not None:
            return False
        kept = sum(takewhile(bool, map(eq, self._tokens, tokens[:-1])))
        self._hidden += self._columns[kept:]
        del self._tokens[kept:], self._columns[kept:]
        try:
            if len(tokens) + len(self._hidden) + self._max_proposals > self._context:
                self._sequence.reset()
                self._tokens, self._columns, self._hidden = [], [], []
            if len(tokens) + self._max_proposals > self._context or max(tokens) >= self._vocabulary:
                return False
            self._proposals, self._callback = [], callback
            self._read(tokens[len(self._tokens) :])
        except PlaceitError:
            self.pays, self._callback = False, None
            return False
        return True  # the proposals may be there already

    def record_step(self, proposed: int, kept: int, seconds: float) -> None:
        """Record a step, to decide whether proposals pay.

        Args:
            proposed: number of tokens that were proposed for the step.
            kept: number of them that were accepted.
            seconds: time of the step, including the time of its proposals.
        """
        self.proposed, self.kept = self.proposed + proposed, self.kept + kept
        if self.pays is None:
            self._times[proposed > 0].append((kept + 1, seconds))
            if min(map(len, self._times.values())) >= _TIMED_STEPS:
                each = {way: np.sum(times[1:], axis=0) for way, times in self._times.items()}
                self.pays = bool(each[True][1] / each[True][0] < each[False][1] / each[False][0])

    def _read(self, tokens: Sequence[int]) -> None:
        answers = self._submit(self._sequence, tokens, len(self._tokens), self._hidden)
        first = len(self._tokens) + len(self._hidden)
        self._tokens += tokens
        self._columns += range(first, first + len(tokens))
        answers[-1].add_done_callback(self._on_answer)

    def _on_answer(self, answer: Future[Outputs]) -> None:
        try:
            logits = np.asarray(answer.result()["logits"])[0, -1, : self._vocabulary]
            self._proposals.append(int(logits.argmax()))
            if len(self._proposals) < self._max_proposals:
                self._read(self._proposals[-1:])
                return
        except (PlaceitError, CancelledError):
            self.pays = False
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self._proposals)
