"""The queues and the replicas of a server, and the choice of the replica for each request."""

from __future__ import annotations

import threading

from placeit import _core
from placeit.core.errors import ExecutionError, PlaceitError
from placeit.runtime.calls import failure_of
from placeit.serving.batching import Joining
from placeit.serving.history import History
from placeit.serving.replica import Replica
from placeit.serving.sequences import Sequences
from placeit.serving.waiting import Waiting

__all__ = ["Turns"]


class Turns:
    """The part of a server that chooses the replica for the next request; the other parts build on it.

    Args:
        state_memory: bytes that the states of all sequences may take; None for half of the memory that is free now.

    Attributes:
        queued: the compiled queue, whose requests need no Python.
        happened: records an event; see :meth:`placeit.serving.history.History.happened`.
    """

    def __init__(self, state_memory: float | None) -> None:
        self._joining: Joining | None = None
        self._history = History()
        self.happened = self._history.happened
        self.busy = self._history.busy
        self._lock = threading.Lock()
        self.queued = _core.RequestQueue()
        self._waiting = Waiting(self.queued.make_room, self._history.outcomes)
        self._closed = self._over = False
        self._reason: PlaceitError | None = None  # why nothing can run any more; None while requests can run
        self.sequences = Sequences(self._lock, self._waiting, self._for_sequences, self._wake_replicas, state_memory)
        self._every, self._since = 1, 0  # a candidate takes one request in _every; _since have begun after its last
        self._replicas: list[Replica] = []

    @property
    def able(self) -> bool:
        """True if the server takes requests and has devices that run them."""
        return not self._closed and any(replica.able for replica in self._replicas)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting) + self.queued.waiting

    def stays(self, replica: Replica) -> bool:
        """Return whether a replica continues to serve without a request in flight, since more may arrive."""
        return replica.executor.stays and replica.able and (self.able or self.queued.waiting > 0)

    @property
    def is_here(self) -> bool:
        """True if the calling thread is a replica's thread, where callbacks of the server's futures run."""
        return any(replica.is_here() for replica in self._replicas)

    def _for_sequences(self) -> list[Replica]:
        """Return the replicas that may have sequences; with the lock. Raise if no request can run any more."""
        if self._closed or self._reason is not None:
            raise self._why()
        return [replica for replica in self._replicas if replica.able and not replica.exploring]

    def _why(self) -> PlaceitError:
        reason = self._reason
        if reason is None:
            return ExecutionError("This server is closed: make a new one.")
        return failure_of("Nothing can run on this server any more", reason)

    def _ring(self) -> None:
        for replica in self._replicas:
            replica.bell.ring()

    def _wake_replicas(self) -> None:
        """Wake the replicas whose turn it is to take a waiting request, if they have room; with the lock."""
        following = None if self._waiting.first() is None else self._next()
        for replica in self._replicas if self._waiting else ():
            if replica is following or self.sequences.next(replica):
                replica.bell.ring()

    def _next(self) -> Replica | None:
        """Return the replica that takes the next request of no sequence; None if no replica has room. With the lock."""
        able = [replica for replica in self._replicas if replica.room]
        if any(replica.able and not replica.exploring for replica in self._replicas):
            for replica in able:
                if replica.exploring and not replica.load and self._since >= self._every - 1:
                    return replica
            able = [replica for replica in able if not replica.exploring]
        return min(able, key=lambda replica: replica.load, default=None)

    def _is_turn_of(self, replica: Replica) -> bool:
        """Return whether a replica that asks may have the next request of no sequence; with the lock."""
        following = self._next()
        if following is replica:
            return True
        if not replica.able or replica.exploring or (following is not None and following.exploring):
            return False
        return following is None or following.load >= replica.load
