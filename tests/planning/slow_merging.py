"""Coarsening as it is defined, in time that grows with the square of the ops: an oracle for the one that does not."""

from __future__ import annotations

import heapq

from placeit.core.graph import OpGraph


class Merger:
    """What :class:`placeit.planning.merging.Merger` has to do, by looking at every group at every merge.

    ``below[g]`` is a bit set (a Python integer) of the groups that g reaches.
    """

    def __init__(self, graph: OpGraph, work=None) -> None:
        ops = len(graph)
        self.leader = list(range(ops))
        self.live = dict.fromkeys(range(ops))
        self.flops = (graph.flops if work is None else work).tolist()
        self.children: list[dict[int, float]] = [{} for _ in range(ops)]
        self.parents: list[dict[int, float]] = [{} for _ in range(ops)]
        sizes = graph.tensor_bytes[graph.edge_tensor].tolist()
        for (u, v), size in zip(graph.edges.tolist(), sizes, strict=True):
            self.children[u][v] = self.children[u].get(v, 0.0) + size
            self.parents[v][u] = self.children[u][v]
        self.below = [0] * ops
        for u in reversed(range(ops)):
            for v in self.children[u]:
                self.below[u] |= self.below[v] | 1 << v

    def owner(self) -> list[int]:
        """Return the group of every op."""
        return [self.find(v) for v in range(len(self.leader))]

    def find(self, op: int) -> int:
        while self.leader[op] != op:
            self.leader[op] = self.leader[self.leader[op]]
            op = self.leader[op]
        return op

    def merge(self, u: int, v: int) -> None:
        """Merge group v into group u; there must be no path between them other than an edge."""
        self.leader[v] = u
        del self.live[v]
        self.flops[u] += self.flops[v]
        for near, far in ((self.children, self.parents), (self.parents, self.children)):
            near[u].pop(v, None)
            near[v].pop(u, None)
            for other, size in near[v].items():
                del far[other][v]
                near[u][other] = far[other][u] = near[u].get(other, 0.0) + size
        bit_u, bit_v = 1 << u, 1 << v
        self.below[u] = (self.below[u] | self.below[v]) & ~(bit_u | bit_v)
        for g in self.live:
            if self.below[g] & (bit_u | bit_v):
                self.below[g] = (self.below[g] | bit_u | self.below[u]) & ~bit_v

    def join_convex(self, ops: set[int]) -> None:
        """Merge ops and everything between them."""
        members = {self.find(op) for op in ops}
        if len(members) < 2:
            return
        mask = sum(1 << g for g in members)
        reached = 0
        for g in members:
            reached |= self.below[g]
        between = {g for g in self.live if reached >> g & 1 and self.below[g] & mask}
        # in topological order each merge adds only what the group already reaches directly or is unrelated to
        first, *rest = sorted(members | between, key=lambda g: (-self.below[g].bit_count(), g))
        for g in rest:
            self.merge(first, g)

    def co_locate(self, join=lambda _u, _v: True) -> None:
        """Apply the rule of HSDAG, Appendix G, to what may be joined."""
        for u in list(self.live):
            while u in self.live and len(self.children[u]) == 1:
                (v,) = self.children[u]
                if len(self.parents[v]) != 1 or not join(u, v):
                    break
                self.merge(u, v)

    def bound(self, limit: int) -> None:
        """Merge the cheapest pairs until at most ``limit`` groups are left."""
        heap = [self._entry(u, v) for u in self.live for v in self.children[u]]
        heapq.heapify(heap)
        while len(self.live) > limit and heap:
            entry = heapq.heappop(heap)
            u, v = entry[2:]
            # an entry is out of date if either group has grown since
            if u not in self.live or v not in self.children[u] or entry != self._entry(u, v):
                continue
            if any(self.below[w] >> v & 1 for w in self.children[u]):
                continue  # another path; gone only when u or v is merged with a group on it, which enters the pair again
            self.merge(u, v)
            for w in self.children[u]:
                heapq.heappush(heap, self._entry(u, w))
            for w in self.parents[u]:
                heapq.heappush(heap, self._entry(w, u))
        if len(self.live) > limit:
            self._merge_unrelated(limit)

    def _entry(self, u: int, v: int) -> tuple[float, float, int, int]:
        return self.flops[u] + self.flops[v], -self.children[u][v], u, v

    def _merge_unrelated(self, limit: int) -> None:
        islands = [(self.flops[g], g) for g in self.live]
        heapq.heapify(islands)
        while len(self.live) > limit:
            (_, u), (_, v) = heapq.heappop(islands), heapq.heappop(islands)
            self.merge(u, v)
            heapq.heappush(islands, (self.flops[u], u))
