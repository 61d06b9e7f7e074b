"""A prefix cache: the state of a prefix that prompts share is computed once, and each text starts from a copy of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import eq

from placeit.core.errors import PlaceitError
from placeit.core.threads import Gate
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
        self._cached: dict[Tokens, _Prefix] = {}  # in order of use, the last used one at the end
        self._lock = threading.Lock()

    def begin(self, prompt: Sequence[int]) -> tuple[ServedSequence, int]:
        """Open a sequence for a text; return it with the number of the prompt's tokens that its state includes.

        Texts wait only for the computation of a prefix that they have.

        Raises:
            StateMemoryError: there is no memory for its state.
            ExecutionError: a device fails, or the server is closed.
        """
        tokens = tuple(prompt)
        try:
            with self._lock:
                cached, shared = self._shared_prefix(tokens)
                self._recent.append(tokens)
            if shared is not None and len(shared.tokens) > len(cached):
                self._compute(shared, cached)
            if shared is not None and (kept := self._ready(shared)) is not None:
                return kept.fork(), len(shared.tokens)
            return self._server.sequence(), 0
        except PlaceitError:  # a device fails, a state is lost, or there is no memory for another one
            with self._lock:
                self._evict(0)
        return self._server.sequence(), 0

    def _shared_prefix(self, tokens: Tokens) -> tuple[Tokens, _Prefix | None]:
        """Return the longest cached prefix of a prompt, and the one to begin with: it, or a longer one to be computed."""
        cached = max((one for one in self._cached if tokens[: len(one)] == one and len(one) < len(tokens)), key=len, default=())
        longest = max((sum(takewhile(bool, map(eq, tokens[:-1], one))) for one in self._recent), default=0)
        shared = self._cached.pop(cached, None)
        if shared is not None:
            self._cached[cached] = shared
        if longest >= len(cached) + _MIN_TOKENS:
            shared = self._cached[tokens[:longest]] = _Prefix(tokens[:longest], shared)
        return cached, shared

    def _compute(self, prefix: _Prefix, cached: Tokens) -> None:
        """Compute the state of a prefix from the state of a shorter one. Raises PlaceitError."""
        try:
            begun = None if prefix.after is None else self._ready(prefix.after)
            sequence = self._server.sequence() if begun is None else begun.fork()
            known = 0 if begun is None else len(cached)
            for answer in self._read(sequence, prefix.tokens[known:], known):
                answer.result()
            prefix.sequence = sequence
        finally:
            prefix.after = None
            prefix.ended.open()
            with self._lock:
                if prefix.sequence is None:
                    self._cached.pop(prefix.tokens, None)
                self._evict(_MAX_PREFIXES)

    def _ready(self, prefix: _Prefix) -> ServedSequence | None:
        """Wait until a prefix has been computed; return its sequence, or None if it is not cached."""
        prefix.ended.wait()
        with self._lock:
            return prefix.sequence if self._cached.get(prefix.tokens) is prefix else None

    def _evict(self, max_prefixes: int) -> None:
        """Close the least recently used sequences until at most ``max_prefixes`` are left, and their memory is in its limit."""
        kept = {one.tokens: one.sequence for one in self._cached.values() if one.sequence is not None}
        room = _SHARE * self._server.sequences.most
        while len(kept) > max_prefixes or sum(one.state_bytes for one in kept.values()) > room:
            tokens = next(iter(kept))
            del self._cached[tokens]
            kept.pop(tokens).close()


class _Prefix:
    """A prefix of prompts.

    Args:
        tokens: its tokens.
        after: a shorter one, from whose state it is computed; None for the initial state.

    Attributes:
        sequence: has its state; None until it has been computed.
        ended: opens when it has been computed, or has failed to be.
    """

    def __init__(self, tokens: Tokens, after: _Prefix | None) -> None:
        self.tokens, self.after = tokens, after
        self.sequence: ServedSequence | None = None
        self.ended = Gate()
