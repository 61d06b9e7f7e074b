"""The rules of execution once more, written to be read: lists, dictionaries and sets of one placement's requests in flight.

Compiled functions are held to it call for call (test_rules.py), and it to the simulator of slow_simulator.py.
"""

import heapq

import numpy as np

from placeit.core.errors import ExecutionError
from placeit.simulator.scheduler import EXECUTED_RULES, RequestDone, Start, Transfer
from tests.simulator import slow_simulator as slow


class _Request:
    """Progress of one request."""

    __slots__ = ("aborted", "base", "finished", "left", "next", "number", "pending", "running", "sent")

    def __init__(self, number, base, pending, devices):
        self.number = number
        self.base = base  # what its keys in a queue count from: earlier requests come first
        self.pending = pending  # in-edges of each op that have not fired
        self.left = len(pending)  # ops that have not finished
        self.next = [0] * devices  # planned: how many ops each device has started
        self.running = set()  # ops, and transfers numbered after the ops
        self.finished = set()  # ops and transfers, as in ``running``
        self.sent = set()  # transfers that have given their channel back before they arrive
        self.aborted = False


class _Move:
    """What happens, in each request, to one tensor that has to go to one device."""

    __slots__ = ("channel", "consumers", "dst", "node", "rank", "src", "tensor")

    def __init__(self, node, tensor, src, dst, channel):
        self.node, self.tensor, self.src, self.dst, self.channel = node, tensor, src, dst, channel
        self.consumers = []
        self.rank = 0


class ReferenceScheduler:
    """Decides what starts when; see :class:`placeit.simulator.scheduler.Scheduler`."""

    def __init__(
        self,
        problem,
        placement,
        *,
        rules=EXECUTED_RULES,
        priority=None,
    ):
        place = problem.check(placement).tolist()
        ops, devices = len(problem), problem.devices
        self._names = problem.op_names
        self._place, self._devices = place, devices
        self._fifo, self._planned, self._contended = rules.queue == "fifo", rules.queue == "planned", rules.links == "channel"
        self._rivals = [np.flatnonzero(row).tolist() for row in problem.conflicts]
        self._pending = np.bincount(problem.edges[:, 1], minlength=ops).tolist()
        self._entries = [v for v in range(ops) if self._pending[v] == 0]
        self._local = [[] for _ in range(ops)]  # consumers on the same device, in edge order
        self._moves = [[] for _ in range(ops)]  # what goes elsewhere, in the order of requests
        self._move_of = {}
        for (v, w), tensor in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), strict=True):
            src, dst = place[v], place[w]
            if src == dst:
                self._local[v].append(w)
                continue
            move = self._move_of.get((tensor, dst))
            if move is None:
                move = _Move(ops + len(self._move_of), tensor, src, dst, src * devices + dst)
                self._move_of[tensor, dst] = move
                self._moves[v].append(move)
            move.consumers.append(w)

        self._rank = [0] * ops  # place of each op in the order of priority
        if not self._fifo:
            high = slow.ranks(problem, place) if priority is None else np.asarray(priority, np.float64).tolist()
            order = sorted(problem.order.tolist(), key=lambda v: -high[v])
            for i, v in enumerate(order):
                self._rank[v] = i
            # transfers that serve equal priorities tie, whatever the numbers of the ops
            level = {p: i for i, p in enumerate(sorted(set(high), reverse=True))}
            for move in self._move_of.values():
                move.rank = min(level[high[w]] for w in move.consumers)
            self._plan = [[v for v in order if place[v] == d] for d in range(devices)]

        self._ready = [[] for _ in range(devices)]
        self._running = set()  # devices that run something
        self._waiting = [[] for _ in range(devices * devices)]
        self._moving = [False] * (devices * devices)
        self._requests = {}
        self._count = 0  # of everything queued, for ties
        self._begun = 0

    def begin(self, request):
        """Start a request. Raises ExecutionError if one of that number is in flight."""
        if request in self._requests:
            raise ExecutionError(f"Request {request} was begun while a request of that number is in flight.")
        state = _Request(request, self._begun * len(self._place), self._pending.copy(), self._devices)
        self._begun += 1
        self._requests[request] = state
        out = []
        for v in self._entries:
            self._enqueue(state, v)
        if any(self._rivals):
            self._start_among(range(self._devices), out)
        for v in self._entries:
            self._start_among([self._place[v]], out)
        return out

    def op_finished(self, request, op):
        """Record that an op has finished. Raises ExecutionError if it was not running."""
        state = self._requests.get(request)
        if state is None or op not in state.running:
            raise ExecutionError(f"Op '{self._names[op]}' of request {request} was reported as finished, but was not running.")
        out = []
        device = self._place[op]
        state.running.remove(op)
        state.finished.add(op)
        state.left -= 1
        self._running.remove(device)
        if self._fifo:
            self._start_among([device, *self._rivals[device]], out)
        if not state.aborted:
            self._fire(state, self._local[op])
            moves = self._moves[op]
            if self._contended:
                for move in moves:
                    self._count += 1
                    key = 0 if self._fifo else state.base + move.rank
                    heapq.heappush(self._waiting[move.channel], (key, self._count, state, move))
                for move in moves:  # in a second loop, so that the most urgent of several tensors goes first
                    if not self._moving[move.channel]:
                        self._move_next(move.channel, out)
            else:
                for move in moves:
                    state.running.add(move.node)
                    out.append(Transfer(request, move.tensor, move.src, move.dst))
        self._start_among([device, *self._rivals[device]], out)
        if not state.running:
            self._end(state, out)
        return out

    def transfer_sent(self, request, tensor, dst):
        """Record that the channel of a transfer can take the next one, though the tensor has not arrived yet.

        For channels that queue: what is started next is behind it and waits for nothing else. Raises ExecutionError if the
        tensor was not on its way, or this was said before.
        """
        state, move = self._requests.get(request), self._move_of.get((tensor, dst))
        if state is None or move is None or move.node not in state.running or move.node in state.sent:
            raise ExecutionError(f"Tensor {tensor} of request {request} left for device {dst}, but was not to be sent there.")
        out = []
        state.sent.add(move.node)
        if self._contended:
            self._move_next(move.channel, out)
        return out

    def transfer_finished(self, request, tensor, dst):
        """Record that a tensor has arrived. Raises ExecutionError if it was not on its way."""
        state, move = self._requests.get(request), self._move_of.get((tensor, dst))
        if state is None or move is None or move.node not in state.running:
            raise ExecutionError(f"Tensor {tensor} of request {request} arrived on device {dst}, but was not on its way.")
        out = []
        state.running.remove(move.node)
        state.finished.add(move.node)
        if move.node in state.sent:
            state.sent.remove(move.node)
        elif self._contended:
            self._move_next(move.channel, out)
        if not state.aborted:
            self._fire(state, move.consumers)
        self._start_among([dst], out)
        if not state.running:
            self._end(state, out)
        return out

    def abort(self, request):
        """Drop everything of a request that has not started; nothing happens if it is not in flight.

        What has started keeps its device or channel until it is reported as finished, failed or not; then comes
        ``RequestDone``.
        """
        state = self._requests.get(request)
        out = []
        if state is not None and not state.aborted:
            state.aborted = True
            for ready in self._ready:
                ready[:] = [entry for entry in ready if entry[1] is not state]
                heapq.heapify(ready)
            for waiting in self._waiting:
                waiting[:] = [entry for entry in waiting if entry[2] is not state]
                heapq.heapify(waiting)
            if not state.running:
                self._end(state, out)
        return out

    def device_lost(self, device):
        """Record that a device is gone; return the requests that are aborted, and what to do."""
        out, ops = [], len(self._place)
        moves = {move.node: move for move in self._move_of.values()}

        def there(node):
            return self._place[node] == device if node < ops else device in (moves[node].src, moves[node].dst)

        for state in list(self._requests.values()):
            left = {v for v in range(ops) if v not in state.finished}
            left |= {node for node, move in moves.items() if move.src == device and node not in state.finished}
            if not any(self._place[node] == device if node < ops else True for node in left):
                continue
            gone = {node for node in state.running if there(node)}
            if any(node < ops for node in gone):
                self._running.remove(device)
            state.running -= gone
            out += self.abort(state.number) if not state.aborted else []
            if state.number in self._requests and not state.running:
                self._end(state, out)
        aborted = sorted({step.request for step in out} | {state.number for state in self._requests.values() if state.aborted})
        self._start_among([device, *self._rivals[device]], out)
        return aborted, out

    def running(self):
        """What has been started and not been reported as finished, of all requests in flight."""
        ops, out = len(self._place), list[Start | Transfer]()
        of_node = {move.node: move for move in self._move_of.values()}
        for state in self._requests.values():
            for node in sorted(state.running):
                if node < ops:
                    out.append(Start(state.number, node, self._place[node]))
                else:
                    move = of_node[node]
                    out.append(Transfer(state.number, move.tensor, move.src, move.dst))
        return out

    def _fire(self, state, consumers):
        pending = state.pending
        for w in consumers:
            pending[w] -= 1
            if pending[w] == 0:
                self._enqueue(state, w)

    def _enqueue(self, state, op):
        device = self._place[op]
        if self._fifo:
            self._count += 1
            key = self._count
        elif self._planned and not self._is_next(state, op):
            return
        else:
            key = state.base + self._rank[op]
        heapq.heappush(self._ready[device], (key, state, op))

    def _is_next(self, state, op):
        """Whether every op that comes before this one in the plan, where it runs or on devices that conflict, has started."""
        device = self._place[op]
        nexts = [self._plan[d][state.next[d] :][:1] for d in (device, *self._rivals[device])]
        return min((rest[0] for rest in nexts if rest), key=lambda v: self._rank[v]) == op

    def _start_among(self, devices, out):
        """Have devices start what they may: of all that could start now the most urgent goes first."""
        while True:
            able = [d for d in devices if self._ready[d] and self._running.isdisjoint((d, *self._rivals[d]))]
            if not able:
                return
            device = min(able, key=lambda d: self._ready[d][0][0])
            _, state, op = heapq.heappop(self._ready[device])
            self._running.add(device)
            state.running.add(op)
            out.append(Start(state.number, op, device))
            if self._planned:
                state.next[device] += 1
                for d in (device, *self._rivals[device]):
                    rest = self._plan[d][state.next[d] :][:1]
                    if rest and state.pending[rest[0]] == 0:
                        self._enqueue(state, rest[0])

    def _move_next(self, channel, out):
        waiting = self._waiting[channel]
        self._moving[channel] = bool(waiting)
        if waiting:
            _, _, state, move = heapq.heappop(waiting)
            state.running.add(move.node)
            out.append(Transfer(state.number, move.tensor, move.src, move.dst))

    def _end(self, state, out):
        """Report a request of which nothing runs, unless it waits for a device or a channel."""
        if state.left == 0 or state.aborted:
            del self._requests[state.number]
            out.append(RequestDone(state.number))
