"""Merge groups of a task graph pair by pair, keeping the graph of groups acyclic."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph

__all__ = ["Merger"]

_DEAD, _WAITS = -1, 0  # values of an edge's turn: the edge is gone; the edge is in no heap
_GAP = 1 << 20  # between the numbers of neighbours in the order


class _Edge:
    """An edge between two groups.

    Attributes:
        source: the group that writes.
        target: the group that reads.
        nbytes: bytes of all tensors that it moves.
        turn: number of its valid entry in the heap of one of its ends; entries with other turns are out of date.
        waiting: edges from the same source that must not be merged while this edge exists, since it begins another path.
    """

    __slots__ = ("nbytes", "source", "target", "turn", "waiting")

    def __init__(self, source: int, target: int, nbytes: float) -> None:
        self.source, self.target, self.nbytes, self.turn = source, target, nbytes, _WAITS
        self.waiting: list[_Edge] = []


_Near = tuple[float, float, int, int, _Edge]  # work and -bytes of the neighbour, name of the neighbour, turn, edge
_Entry = tuple[float, float, int, int, int, int, int, _Edge]  # work of both, -bytes, names, version, group, turn, edge


class Merger:
    """Groups under construction, at first one per op; each is identified by the number of one of its ops.

    Whether a merge would close a cycle is found by a search from both ends, within the groups between the two in a topological
    order, which every merge updates. The search that ends first decides, and only the groups that it found have to move in the
    order.

    To find the lightest pair, each edge is in a heap of the end with more neighbours, keyed by the work of the other end. So
    nothing has to be sorted again when a group with many neighbours grows. Another heap holds the best edge of each group.

    Args:
        graph: the task graph.
        work: ``float64[V]``, the measure by which pairs are compared; None for floating-point operations.

    Attributes:
        live: the current groups.
    """

    def __init__(self, graph: OpGraph, work: NDArray[np.float64] | None = None) -> None:
        ops = len(graph)
        self.live = dict.fromkeys(range(ops))
        self._leader = list(range(ops))
        self._name = list(range(ops))  # number of the first op of a group: decides between equals
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
        self._version = [0] * ops  # of a group's entry in the heap of all groups
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
        """Merge group v into group u, which v reads from. Returns False if another path leads from u to v."""
        return self._connect(u, v)[0] is None

    def co_locate(self, join: Callable[[int, int], bool] = lambda _u, _v: True) -> None:
        """Merge every op with its only child if it is that child's only parent.

        Args:
            join: called right before every merge with an op of a group and an op of the group that reads from it. Returns
                whether they may be merged.
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
                self._push(edge)
        for u in self.live:
            self._push_best(u)
        while len(self.live) > limit and self._heap:
            *_, version, keeper, turn, edge = heapq.heappop(self._heap)
            if version != self._version[keeper]:
                continue
            if edge.turn != turn:
                self._push_best(keeper)
                continue
            edge.turn = _WAITS
            u, v = edge.source, edge.target
            self._elsewhere[u].discard(edge)
            self._elsewhere[v].discard(edge)
            step, changed = self._connect(u, v)
            if step is None:
                edge.turn = _DEAD
                self._push_again(self.find(u), [*changed, *(freed for freed in edge.waiting if freed.turn == _WAITS)])
            else:
                # the other path lasts until its first group is merged with u or v, which makes one edge of two
                self._children[u][step].waiting.append(edge)
                self._push_best(keeper)
        if len(self.live) > limit:
            self._merge_unrelated(limit)

    def _merge_unrelated(self, limit: int) -> None:
        islands = [(self._work[g], self._name[g], g) for g in self.live]
        heapq.heapify(islands)
        while len(self.live) > limit:
            u, v = heapq.heappop(islands)[2], heapq.heappop(islands)[2]
            self._merge(u, v)
            heapq.heappush(islands, (self._work[u], self._name[u], u))

    # choosing the next pair

    def _push(self, edge: _Edge) -> int:
        """Push an edge to the heap of the end with more neighbours; return that end."""
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

    def _push_best(self, group: int) -> None:
        """Push the best edge in a group's heaps to the heap of all groups, in place of the group's previous entry."""
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

    def _push_again(self, group: int, changed: Iterable[_Edge]) -> None:
        """Push ``changed`` edges to the heaps again, and a grown group's edges to the heaps of their other ends."""
        keepers = {group}
        keepers.update(self._push(edge) for edge in dict.fromkeys([*self._elsewhere[group], *changed]))
        for keeper in keepers:
            self._push_best(keeper)

    def _degree(self, group: int) -> int:
        return len(self._children[group]) + len(self._parents[group])

    # merging

    def _connect(self, u: int, v: int) -> tuple[int | None, list[_Edge]]:
        """Merge two groups, u before v in the order, unless a path other than their edge leads from u to v.

        Returns:
            The first group after u on the other path, or None if the groups were merged; and what :meth:`_merge` returns.
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
        """Look for a path from u to v, which have no edge between them.

        Returns:
            The first group after u on a path, or None if there is no path. Then, without a path, the groups to move in the
            order so that u and v are next to each other, and the group to move them behind. They are u and all groups before
            v that it reaches, or v and all groups after u that reach it, whichever are found first.
        """
        place = self._order.place
        if between := self._children[u].keys() & self._parents[v].keys():  # most paths have one group between u and v
            return next(iter(between)), [], v
        begin, end = place(u), place(v)
        below, above = {u: u}, {v: v}  # for each group found: the first step on the way to it
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
        while True:  # every group between members is among those that the shorter walk finds
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
            Edges whose heap entries may be out of date, besides edges of the merged group in heaps of other groups.
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
        """Merge two edges between the same groups into the first."""
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
    """Follow edges from some groups, depth first.

    Args:
        found: the groups to start from; the groups that are found are added, each with the first step on the way to it.
        near: the neighbours of each group in the direction of the walk.
        within: whether to continue from a group.

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
    """A list of groups in which groups can be moved, with a number for each group that increases along the list.

    Numbers have gaps; where no gap is left, nearby groups are numbered anew. Source: Dietz and Sleator, "Two algorithms for
    maintaining order in a list", 1987, section 2.
    """

    def __init__(self, count: int) -> None:
        self._after: list[int] = [*range(1, count + 1), 0]  # the last entry stands for both ends of the list
        self._before: list[int] = [count, *range(count)]
        self._place: list[int] = [(i + 1) * _GAP for i in range(count)] + [0]

    def place(self, group: int) -> int:
        """Return the number of a group; a later group has a larger one."""
        return self._place[group]

    def before(self, group: int) -> int:
        """Return the group right before a group."""
        return self._before[group]

    def drop(self, group: int) -> None:
        """Remove a group from the list."""
        self._after[self._before[group]] = self._after[group]
        self._before[self._after[group]] = self._before[group]

    def move(self, groups: Sequence[int], after: int) -> None:
        """Move groups right behind another group, in the order of ``groups``."""
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
