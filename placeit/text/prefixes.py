"""Equal beginnings of prompts, which are computed once: texts that have one begin with a copy of its state."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import eq

from placeit.core.errors import PlaceitError
from placeit.serving.sequence import Sequence as ServedSequence
from placeit.serving.server import Answer, Server

__all__ = ["Prefixes"]

_LEAST = 64  # tokens of a beginning whose computation takes longer than copying its state
_MOST = 8  # beginnings whose states are kept
_SEEN = 32  # last prompts, which others are compared with
_SHARE = 0.25  # of the memory for states, which the states of beginnings may take

Tokens = tuple[int, ...]


class Prefixes:
    """The states of beginnings that prompts of a decoder share, each in an open sequence.

    A beginning is computed by itself when a second prompt has it, such as the system message of conversations or an earlier
    part of the same one. The states that were used last are kept. They count as states of sequences of the server.

    Args:
        server: runs the decoder.
        read: submits tokens in a sequence, after a number of others; returns the answers.
    """

    def __init__(self, server: Server, read: Callable[[ServedSequence, Sequence[int], int], list[Answer]]) -> None:
        self._server, self._read = server, read
        self._seen = deque[Tokens](maxlen=_SEEN)
        self._kept: dict[Tokens, ServedSequence] = {}  # the ones used last at the end
        self._turn = threading.Lock()

    def begin(self, prompt: Sequence[int]) -> tuple[ServedSequence, int]:
        """Open a sequence for a text; return it with the number of the prompt's tokens that its state includes already.

        Raises:
            StateMemoryError: there is no memory for its state.
            ExecutionError: a device fails, or the server is closed.
        """
        tokens = tuple(prompt)
        with self._turn:
            try:
                beginning = self._shared(tokens)
                if beginning:
                    return self._kept[beginning].fork(), len(beginning)
                return self._server.sequence(), 0
            except PlaceitError:  # a device fails, a state is lost, or there is no memory for another one
                self._keep(0)
            finally:
                self._seen.append(tokens)
        return self._server.sequence(), 0

    def _shared(self, tokens: Tokens) -> Tokens:
        """Return the longest beginning of a prompt whose state is kept, which is computed now if an earlier prompt has it."""
        known = max((one for one in self._kept if tokens[: len(one)] == one and len(one) < len(tokens)), key=len, default=())
        longest = max((sum(takewhile(bool, map(eq, tokens[:-1], one))) for one in self._seen), default=0)
        if longest >= len(known) + _LEAST:
            sequence = self._kept[known].fork() if known else self._server.sequence()
            for answer in self._read(sequence, tokens[len(known) : longest], len(known)):
                answer.result()
            known = tokens[:longest]
            self._kept[known] = sequence
        if known:
            self._kept[known] = self._kept.pop(known)
            self._keep(_MOST)
        return known if known in self._kept else ()

    def _keep(self, most: int) -> None:
        """Close the sequences that were not used for the longest time, beyond ``most`` and beyond the memory for them."""
        room = _SHARE * self._server.sequences.most
        while len(self._kept) > most or sum(one.state_bytes for one in self._kept.values()) > room:
            self._kept.pop(next(iter(self._kept))).close()
