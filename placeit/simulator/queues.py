"""The records that the simulator's compiled functions work on, and the queues that they keep in them.

:mod:`placeit.simulator.rules` says what a position, a node and a slot are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit

F = TypeVar("F", bound=Callable[..., Any])
Records: TypeAlias = NDArray[Any]
int64 = cast(Callable[[Any], int], np.int64)  # unlike int(), signed whatever it is given


OP = np.dtype(
    [
        ("first", "u4"),  # the out-edges of v are positions op[v].first to op[v + 1].first
        ("in_first", "u4"),  # the in-edges of v are positions edge[i].into, i from op[v].in_first to op[v + 1].in_first
        ("indegree", "i4"),
        ("order", "u4"),  # the v-th op of a topological order
        ("param_bytes", "f8"),
    ],
    align=True,
)
EDGE = np.dtype(
    [
        ("head", "u4"),  # consumer
        ("tail", "u4"),  # producer
        ("tensor", "u4"),
        ("following", "i4"),  # next position of the same tensor, or -1
        ("shared", "i4"),  # number, among its op's, of a tensor with several edges; -1 with one edge
        ("into", "u4"),  # see OP.in_first
        ("opens", "b1"),  # whether it is the first position of its tensor
        ("enters", "b1"),  # whether it is the first position of its tensor towards its consumer
        ("size", "f8"),  # bytes
    ],
    align=True,
)
NODE = np.dtype(
    [
        ("start", "f8"),  # start and finish are for whoever keeps the time
        ("finish", "f8"),
        ("rank", "f8"),  # within a request the highest goes first
        ("tie", "i4"),  # of equal ranks, the lowest goes first
        ("left", "i4"),  # next in a FIFO queue, or left child in a heap
        ("right", "i4"),  # right child in a heap
        ("slot", "i4"),
        ("pending", "i4"),  # of an op: in-edges that have not fired
        ("phase", "i4"),  # IDLE, RUNNING, SENT or DONE
    ],
    align=True,
)
IDLE, RUNNING, SENT, DONE = 0, 1, 2, 3
QUEUE = np.dtype(
    [
        ("root", "i4"),  # first node, or -1
        ("last", "i4"),
        ("busy", "i4"),  # whether it takes nothing; of a device: how many run, of itself and those that conflict with it
    ],
    align=True,
)
REQUEST = np.dtype(
    [
        ("age", "i8"),  # of several requests the one that began first, which has the lowest, goes first
        ("left", "i4"),  # ops that have not finished
        ("running", "i4"),  # nodes that were started and have not finished
        ("active", "b1"),  # in flight
        ("aborted", "b1"),
    ],
    align=True,
)


def uncounted(function: F) -> F:
    """Compile a function that neither makes nor keeps arrays: it need not count references to them."""
    return jit(function, counted=False)


def inline(function: F) -> F:
    """Compile such a function so that it is inlined wherever it is called."""
    return jit(function, counted=False, forceinline=True)


@inline
def before(node: Records, request: Records, a: int, b: int) -> bool:
    """Whether a node goes before another, unless they are queued first in, first out."""
    if node[a].slot != node[b].slot:
        return bool(request[node[a].slot].age < request[node[b].slot].age)
    return bool(node[a].rank > node[b].rank or (node[a].rank == node[b].rank and node[a].tie < node[b].tie))


@uncounted
def _merge(node: Records, request: Records, a: int, b: int) -> int:
    """Merge two skew heaps of nodes (Sleator and Tarjan 1986), first to go first, and return the root."""
    if before(node, request, b, a):
        a, b = b, a
    root = a
    while True:
        child = node[a].right
        node[a].right = node[a].left
        if child < 0:
            node[a].left = b
            return root
        if before(node, request, b, child):
            node[a].left = b
            a, b = b, child
        else:
            node[a].left = child
            a = child


@inline
def enqueue(fifo: bool, node: Records, request: Records, queue: Records, q: int, n: int) -> None:
    """Add a node to a queue."""
    node[n].left = -1
    node[n].right = -1
    root = int64(queue[q].root)
    if root < 0:
        queue[q].root = n
    elif fifo:
        node[queue[q].last].left = n
    else:
        queue[q].root = _merge(node, request, root, n)
    queue[q].last = n


@inline
def dequeue(fifo: bool, node: Records, request: Records, queue: Records, q: int) -> int:
    """Take the first node from a queue that has one."""
    n = int64(queue[q].root)
    a, b = int64(node[n].left), int64(node[n].right)
    if fifo or b < 0:
        queue[q].root = a
    elif a < 0:
        queue[q].root = b
    else:
        queue[q].root = _merge(node, request, a, b)
    return n
