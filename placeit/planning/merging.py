"""Merges groups of a task graph pair by pair, keeping the graph of groups acyclic."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph

__all__ = ["Merger"]

_DEAD, _WAITS = -1, 0  # what an edge has in place of a turn when it is gone, and when it is in no heap
_GAP = 1 << 20


class _Edge:
    """An edge between two groups.

    Attributes:
        source: the group that writes.
        target: the group that reads.
        nbytes: of all tensors that it moves.
        turn: of its entry in the heap of one of its ends; entries with other turns are out of date.
        waiting: edges from the same source that may not be merged as long as this one is there, which begins another path.
    """

    __slots__ = ("nbytes", "source", "target", "turn", "waiting")

    def __init__(self, source: int, target: int, nbytes: float) -> None:
        self.source, self.target, self.nbytes, self.turn = source, target, nbytes, _WAITS
        self.waiting: list[_Edge] = []


_Near = tuple[float, float, int, int, _Edge]  # work of the neighbour, -bytes, name of the neighbour, turn, edge
_Entry = tuple[float, float, int, int, int, int, int, _Edge]  # work of both, -bytes, names, version, group, turn, edge


class Merger:
    """Groups under construction, at first one per op; each is identified by the number of one of its ops.

    Would a merge close a cycle? A search from both ends finds out, within what lies between the two in a topological order,
    which every merge keeps up. The side of the search that ends first decides, and is all that has to move in the order.

    What is the lightest pair? An edge is kept in a heap of that end which has more neighbours, by the work of the other one,
    so that nothing has to be sorted anew when a group with many neighbours grows; the best edge of each group is in a heap of
    all groups.

    Args:
        graph: the task graph.
        work: ``float64[V]``, by which pairs are compared; None for floating-point operations.

    Attributes:
        live: the groups there are.
    """

    def __init__(self, graph: OpGraph, work: NDArray[np.float64] | None = None) -> None:
        ops = len(graph)
        self.live = dict.fromkeys(range(ops))
        self._leader = list(range(ops))
        self._name = list(range(ops))  # of the op that a group began with: decides between equals
        self._work: list[float] = (graph.flops if work is None else work).tolist()
        self._children: list[dict[int, _Edge]] = [{} for _ in range(ops)]
        self._parents: list[dict[int, _Edge]] = [{} for _ in range(ops)]
        sizes = graph.tensor_bytes[graph.edge_tensor].tolist()
        for (u, v), size in zip(graph.edges.tolist(), sizes, strict=True):
            if (edge := self._children[u].get(v)) is not None:
                edge.nbytes += size
            else:
                self._children[u][v] = self._parents[v][u] = _Edge(u, v, size)
        self._order = _Order(ops)
        self._heap: list[_Entry] = []
        self._below: list[list[_Near]] = [[] for _ in range(ops)]
        self._above: list[list[_Near]] = [[] for _ in range(ops)]
        self._elsewhere: list[set[_Edge]] = [set() for _ in range(ops)]  # edges in the heap of their other end
        self._version = [0] * ops  # of a group's entry in the heap of all
        self._turns = 0

    def owner(self) -> list[int]:
        """Return the group of every op."""
        return [self.find(v) for v in range(len(self._leader))]

    def find(self, op: int) -> int:
        """Return the group of an op."""
        leader = self._leader
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    def join_convex(self, ops: Iterable[int]) -> None:
        """Merge ops and everything between them."""
        members = {self.find(op) for op in ops}
        if len(members) < 2:
            return
        first, *rest = sorted(self._between(members), key=self._order.place)
        for group in rest:
            self._connect(first, group)
            first = self.find(first)

    def join(self, u: int, v: int) -> bool:
        """Merge group v into group u, which it reads from, unless another path leads from u to v; say whether it was done."""
        return self._connect(u, v)[0] is None

    def co_locate(self, join: Callable[[int, int], bool] = lambda _u, _v: True) -> None:
        """Merge every op with its only child if it is that child's only parent.

        Args:
            join: whether a group may be merged with another one that reads from it, given an op of each; it is asked right
                before every merge.
        """
        for group in list(self.live):
            u = group
            while u in self.live and len(self._children[u]) == 1:
                (v,) = self._children[u]
                if len(self._parents[v]) != 1 or not join(u, v):
                    break
                self._merge(u, v)
                u = self.find(u)

    def bound(self, limit: int) -> None:
        """Merge the lightest pairs until at most ``limit`` groups are left."""
        if len(self.live) <= limit:
            return
        for u in list(self.live):
            for edge in self._children[u].values():
                self._enter(edge)
        for u in self.live:
            self._offer(u)
        while len(self.live) > limit and self._heap:
            *_, version, keeper, turn, edge = heapq.heappop(self._heap)
            if version != self._version[keeper]:
                continue
            if edge.turn != turn:
                self._offer(keeper)
                continue
            edge.turn = _WAITS
            u, v = edge.source, edge.target
            self._elsewhere[u].discard(edge)
            self._elsewhere[v].discard(edge)
            step, changed = self._connect(u, v)
            if step is None:
                edge.turn = _DEAD
                self._reenter(self.find(u), [*changed, *(freed for freed in edge.waiting if freed.turn == _WAITS)])
            else:
                # that path is there until its first group is merged with u, or with v, which makes one edge of two
                self._children[u][step].waiting.append(edge)
                self._offer(keeper)
        if len(self.live) > limit:
            self._merge_unrelated(limit)

    def _merge_unrelated(self, limit: int) -> None:
        islands = [(self._work[g], self._name[g], g) for g in self.live]
        heapq.heapify(islands)
        while len(self.live) > limit:
            u, v = heapq.heappop(islands)[2], heapq.heappop(islands)[2]
            self._merge(u, v)
            heapq.heappush(islands, (self._work[u], self._name[u], u))

    # which pair is next

    def _enter(self, edge: _Edge) -> int:
        """Put an edge into the heap of the end with more neighbours, as it is now, and return that end."""
        u, v = edge.source, edge.target
        self._turns += 1
        edge.turn = self._turns
        if self._degree(u) >= self._degree(v):
            keeper, other, heap = u, v, self._below[u]
        else:
            keeper, other, heap = v, u, self._above[v]
        self._elsewhere[keeper].discard(edge)
        self._elsewhere[other].add(edge)
        heapq.heappush(heap, (self._work[other], -edge.nbytes, self._name[other], edge.turn, edge))
        return keeper

    def _offer(self, group: int) -> None:
        """Put the best of the edges that a group keeps into the heap of all, in place of what was there."""
        self._version[group] += 1
        work, name, entries = self._work[group], self._name[group], []
        for heap, down in ((self._below[group], True), (self._above[group], False)):
            while heap and heap[0][4].turn != heap[0][3]:
                heapq.heappop(heap)
            if heap:
                other, size, neighbour, turn, edge = heap[0]
                names = (name, neighbour) if down else (neighbour, name)
                entries.append((work + other, size, *names, self._version[group], group, turn, edge))
        if entries:
            heapq.heappush(self._heap, min(entries))

    def _reenter(self, group: int, changed: Iterable[_Edge]) -> None:
        """Put edges in again: some, and those of a group that has grown which other groups keep."""
        keepers = {group}
        keepers.update(self._enter(edge) for edge in dict.fromkeys([*self._elsewhere[group], *changed]))
        for keeper in keepers:
            self._offer(keeper)

    def _degree(self, group: int) -> int:
        return len(self._children[group]) + len(self._parents[group])

    # merging

    def _connect(self, u: int, v: int) -> tuple[int | None, list[_Edge]]:
        """Merge two groups, u before v in the order, unless another path than an edge leads from u to v.

        Returns:
            None if they were merged, else the first group after u on the other path; and what :meth:`_merge` returns.
        """
        edge = self._children[u].pop(v, None)
        self._parents[v].pop(u, None)
        step, row, after = self._search(u, v)
        if step is not None:
            if edge is not None:
                self._children[u][v] = self._parents[v][u] = edge
            return step, []
        self._order.move(row, after)
        return None, self._merge(u, v)

    def _search(self, u: int, v: int) -> tuple[int | None, list[int], int]:
        """Look for a path from u to v between which there is no edge.

        Returns:
            The first group after u on one, None if there is none. Then, in that case, what has to move in the order so that u
            and v are beside each other, and after which group: u and all that it reaches before v, or v and all that reach it
            after u, whichever is known first.
        """
        place = self._order.place
        if between := self._children[u].keys() & self._parents[v].keys():  # most paths are as short as that
            return next(iter(between)), [], v
        begin, end = place(u), place(v)
        below, above = {u: u}, {v: v}  # of each group that was found, where the way to it begins
        down = _walk(below, self._children, lambda w: place(w) < end)
        up = _walk(above, self._parents, lambda w: place(w) > begin)
        while True:
            if (move := next(down, None)) is None:
                return None, sorted(below, key=place), v
            at, w = move
            if w in above:
                return (w if at == u else below[at]), [], v
            if (move := next(up, None)) is None:
                return None, sorted(above, key=place), self._order.before(u)
            at, w = move
            if w in below:
                return (at if w == u else below[w]), [], v

    def _between(self, members: set[int]) -> set[int]:
        """Return the groups that lie on paths between members."""
        place = self._order.place
        places = [place(g) for g in members]
        begin, end = min(places), max(places)
        below, above = ({g: g for g in members} for _ in range(2))
        down = _walk(below, self._children, lambda w: place(w) < end)
        up = _walk(above, self._parents, lambda w: place(w) > begin)
        while True:  # what the shorter of two walks finds holds all of them
            if next(down, None) is None:
                found, back = below, self._parents
                break
            if next(up, None) is None:
                found, back = above, self._children
                break
        between = {g: g for g in members}
        for _ in _walk(between, back, found.__contains__):
            pass
        return set(between)

    def _merge(self, u: int, v: int) -> list[_Edge]:
        """Merge two groups; there is no path between them other than an edge from u to v.

        Returns:
            Edges that may have to be entered in heaps anew, besides those of the merged group that other groups keep.
        """
        big, small = (u, v) if self._degree(u) >= self._degree(v) else (v, u)
        self._children[u].pop(v, None)
        self._parents[v].pop(u, None)
        self._work[big] = self._work[u] + self._work[v]
        self._name[big] = self._name[u]
        self._leader[small] = big
        self._version[small] = _DEAD
        self._order.drop(small)
        del self.live[small]
        self._elsewhere[big] |= self._elsewhere[small]
        changed = []
        for table, back in ((self._children, self._parents), (self._parents, self._children)):
            for w, edge in table[small].items():
                del back[w][small]
                edge.source, edge.target = (big, w) if table is self._children else (w, big)
                twin = table[big].setdefault(w, edge)
                back[w][big] = twin
                if twin is not edge:
                    self._join_edges(twin, edge)
                    changed.append(twin)
                elif edge.turn != _WAITS:
                    changed.append(edge)
            table[small] = {}
        self._below[small], self._above[small], self._elsewhere[small] = [], [], set()
        return changed

    def _join_edges(self, edge: _Edge, twin: _Edge) -> None:
        """Make one edge of two between the same groups."""
        edge.nbytes += twin.nbytes
        few, many = sorted((edge.waiting, twin.waiting), key=len)
        many += few
        edge.waiting, twin.waiting = many, []
        twin.turn = _DEAD
        self._elsewhere[twin.source].discard(twin)
        self._elsewhere[twin.target].discard(twin)


def _walk(
    found: dict[int, int], near: Sequence[Mapping[int, object]], within: Callable[[int], bool]
) -> Iterator[tuple[int, int]]:
    """Follow edges from some groups on, in depth.

    Args:
        found: where to begin; gets what is found, each with the first step on the way to it.
        near: the neighbours of each group in the direction of the walk.
        within: whether to go there.

    Yields:
        Each edge that is followed, by its two ends.
    """
    begin = set(found)
    trail = [(group, iter(near[group])) for group in begin]
    while trail:
        at, ways = trail[-1]
        for w in ways:
            yield at, w
            if w not in found and within(w):
                found[w] = w if at in begin else found[at]
                trail.append((w, iter(near[w])))
                break
        else:
            trail.pop()


class _Order:
    """A list in which groups can be moved, and that tells by a number where each is.

    Numbers have gaps, and are spread anew around a place where none is left. Source: Dietz and Sleator, "Two algorithms for
    maintaining order in a list", 1987, section 2.
    """

    def __init__(self, count: int) -> None:
        self._after: list[int] = [*range(1, count + 1), 0]  # the last entry is the end of the list, and its beginning
        self._before: list[int] = [count, *range(count)]
        self._place: list[int] = [(i + 1) * _GAP for i in range(count)] + [0]

    def place(self, group: int) -> int:
        """Return a number that is larger for what comes later."""
        return self._place[group]

    def before(self, group: int) -> int:
        """Return what comes right before a group."""
        return self._before[group]

    def drop(self, group: int) -> None:
        """Take a group out of the list."""
        self._after[self._before[group]] = self._after[group]
        self._before[self._after[group]] = self._before[group]

    def move(self, groups: Sequence[int], after: int) -> None:
        """Move groups to where they follow another one, in the order given."""
        for group in groups:
            self.drop(group)
        row, end, begin = list(groups), self._after[after], self._place[after]
        last = len(self._place) - 1
        needed = len(row) + 1
        while end != last and self._place[end] - begin < needed:
            row.append(end)
            end = self._after[end]
            needed = len(row) ** 2 + 1
        step = _GAP if end == last else (self._place[end] - begin) // (len(row) + 1)
        at = after
        for number, group in enumerate(row, 1):
            self._after[at], self._before[group] = group, at
            self._place[group] = begin + number * step
            at = group
        self._after[at], self._before[end] = end, at
