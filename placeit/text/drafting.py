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

_PROPOSED = 4  # tokens that are checked in one run
_MEASURED = 8  # steps with and without proposals, of which the first is not counted, by which it is decided

Read = Callable[[ServedSequence, Sequence[int], int, Sequence[int]], list[Answer]]
"""Submits tokens in a sequence, given the number of the text's tokens before them and the columns of the state to hide."""


class Draft:
    """A small decoder that proposes tokens, of one text at a time, as long as that is faster.

    Steps of the first text are timed without proposals and then with them. From then on there are proposals if a token took
    less time with them.

    Args:
        sequence: of the small decoder's server, which runs nothing else.
        read: submits tokens of the small decoder.
        context: tokens of its longest text.
        vocabulary: number of tokens that both decoders know.

    Attributes:
        proposed: tokens that were proposed so far.
        kept: the ones that the texts have.
        pays: whether a token takes less time with proposals; None until that is known.
    """

    def __init__(self, sequence: ServedSequence, read: Read, context: int, vocabulary: int) -> None:
        self._sequence, self._submit, self._context, self._vocabulary = sequence, read, context, vocabulary
        self.proposed = self.kept = 0
        self.pays: bool | None = None
        self._times: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
        self._tokens, self._columns, self._hidden = list[int](), list[int](), list[int]()  # in the state, where; what to hide
        self._found, self._most = list[int](), 0
        self._then: Callable[[Sequence[int]], object] | None = None

    def proposes(self, tokens: Sequence[int], most: int, then: Callable[[Sequence[int]], object]) -> bool:
        """Begin to propose the tokens after some, and call ``then`` with them, on another thread; return whether it does.

        Args:
            tokens: the text so far.
            most: most tokens that may be proposed.
            then: gets the proposals; fewer or none if the small decoder fails.
        """
        due = len(self._times[False]) >= _MEASURED if self.pays is None else self.pays
        self._most = min(most, _PROPOSED)
        if not due or self._most < 1 or self._then is not None:
            return False
        kept = sum(takewhile(bool, map(eq, self._tokens, tokens[:-1])))
        self._hidden += self._columns[kept:]
        del self._tokens[kept:], self._columns[kept:]
        try:
            if len(tokens) + len(self._hidden) + self._most > self._context:
                self._sequence.reset()
                self._tokens, self._columns, self._hidden = [], [], []
            if len(tokens) + self._most > self._context or max(tokens) >= self._vocabulary:
                return False
            self._found, self._then = [], then
            self._read(tokens[len(self._tokens) :])
        except PlaceitError:
            self.pays, self._then = False, None
            return False
        return True  # the proposals may be there already

    def took(self, proposed: int, kept: int, seconds: float) -> None:
        """Record the time of a step, and of its proposals if it had some."""
        self.proposed, self.kept = self.proposed + proposed, self.kept + kept
        if self.pays is None:
            self._times[proposed > 0].append((kept + 1, seconds))
            if min(map(len, self._times.values())) >= _MEASURED:
                each = {way: np.sum(times[1:], axis=0) for way, times in self._times.items()}
                self.pays = bool(each[True][1] / each[True][0] < each[False][1] / each[False][0])

    def _read(self, tokens: Sequence[int]) -> None:
        answers = self._submit(self._sequence, tokens, len(self._tokens), self._hidden)
        first = len(self._tokens) + len(self._hidden)
        self._tokens += tokens
        self._columns += range(first, first + len(tokens))
        answers[-1].add_done_callback(self._ended)

    def _ended(self, answer: Future[Outputs]) -> None:
        try:
            logits = np.asarray(answer.result()["logits"])[0, -1, : self._vocabulary]
            self._found.append(int(logits.argmax()))
            if len(self._found) < self._most:
                self._read(self._found[-1:])
                return
        except (PlaceitError, CancelledError):
            self.pays = False
        then, self._then = self._then, None
        if then is not None:
            then(self._found)
