"""A prefix cache: the state of a prefix that prompts share is computed once, and each text starts from a copy of it."""

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

_MIN_TOKENS = 64  # tokens that a prefix must add, since copying its state takes about as long as computing fewer
_MAX_PREFIXES = 8  # prefixes whose states are cached
_MAX_RECENT = 32  # last prompts that a new prompt is compared with
_SHARE = 0.25  # share of the memory for states that cached prefixes may take

Tokens = tuple[int, ...]


class Prefixes:
    """Cached states of prefixes that prompts of a decoder share, each in an open sequence.

    A prefix is computed separately when a second prompt has it, such as the system message of conversations or an earlier part
    of the same conversation. The least recently used states are dropped first. They count as states of sequences of the
    server.

    Args:
        server: runs the decoder.
        read: function that submits tokens to a sequence, given the number of earlier tokens, and returns the answers.
    """

    def __init__(self, server: Server, read: Callable[[ServedSequence, Sequence[int], int], list[Answer]]) -> None:
        self._server, self._read = server, read
        self._recent = deque[Tokens](maxlen=_MAX_RECENT)
        self._cached: dict[Tokens, ServedSequence] = {}  # in order of use, the last used one at the end
        self._lock = threading.Lock()

    def begin(self, prompt: Sequence[int]) -> tuple[ServedSequence, int]:
        """Open a sequence for a text; return it with the number of the prompt's tokens that its state includes.

        Raises:
            StateMemoryError: there is no memory for its state.
            ExecutionError: a device fails, or the server is closed.
        """
        tokens = tuple(prompt)
        with self._lock:
            try:
                prefix = self._shared_prefix(tokens)
                if prefix:
                    return self._cached[prefix].fork(), len(prefix)
                return self._server.sequence(), 0
            except PlaceitError:  # a device fails, a state is lost, or there is no memory for another one
                self._evict(0)
            finally:
                self._recent.append(tokens)
        return self._server.sequence(), 0

    def _shared_prefix(self, tokens: Tokens) -> Tokens:
        """Return the longest cached prefix of a prompt, after computing the prefix that it shares with an earlier prompt."""
        cached = max((one for one in self._cached if tokens[: len(one)] == one and len(one) < len(tokens)), key=len, default=())
        longest = max((sum(takewhile(bool, map(eq, tokens[:-1], one))) for one in self._recent), default=0)
        if longest >= len(cached) + _MIN_TOKENS:
            sequence = self._cached[cached].fork() if cached else self._server.sequence()
            for answer in self._read(sequence, tokens[len(cached) : longest], len(cached)):
                answer.result()
            cached = tokens[:longest]
            self._cached[cached] = sequence
        if cached:
            self._cached[cached] = self._cached.pop(cached)
            self._evict(_MAX_PREFIXES)
        return cached if cached in self._cached else ()

    def _evict(self, max_prefixes: int) -> None:
        """Close the least recently used sequences until at most ``max_prefixes`` are left, and their memory is in its limit."""
        room = _SHARE * self._server.sequences.most
        while len(self._cached) > max_prefixes or sum(one.state_bytes for one in self._cached.values()) > room:
            self._cached.pop(next(iter(self._cached))).close()
