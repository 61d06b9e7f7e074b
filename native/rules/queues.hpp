// Queues of nodes that are linked by their own fields: first in, first out, or by urgency.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace placeit {

using Index = std::int32_t;

/// Shorthand for indices of arrays, which are never negative.
constexpr std::size_t at(Index i) {
    return static_cast<std::size_t>(i);
}

struct Queue {
    Index root = -1;  // first node, or -1
    Index last = -1;
    Index busy = 0;  // whether it takes nothing; for a device: how many run, of it and the ones that conflict with it

    bool empty() const { return root < 0; }
};

/// Merges two skew heaps (Sleator and Tarjan 1986) and returns the root. Nodes have `left` and `right`; `before(a, b)` says
/// whether node a goes before node b.
template <class Node, class Before>
Index merge(Node* node, Index a, Index b, const Before& before) {
    if (before(b, a)) std::swap(a, b);
    const Index root = a;
    while (true) {
        const Index child = node[a].right;
        node[a].right = node[a].left;
        if (child < 0) {
            node[a].left = b;
            return root;
        }
        if (before(b, child)) {
            node[a].left = b;
            a = b;
            b = child;
        } else {
            node[a].left = child;
            a = child;
        }
    }
}

/// Adds a node to a queue.
template <class Node, class Before>
void enqueue(bool fifo, Node* node, Queue& queue, Index n, const Before& before) {
    node[n].left = node[n].right = -1;
    if (queue.empty()) {
        queue.root = n;
    } else if (fifo) {
        node[queue.last].left = n;
    } else {
        queue.root = merge(node, queue.root, n, before);
    }
    queue.last = n;
}

/// Takes the first node from a queue that has one.
template <class Node, class Before>
Index dequeue(bool fifo, Node* node, Queue& queue, const Before& before) {
    const Index n = queue.root, a = node[n].left, b = node[n].right;
    if (fifo || b < 0) {
        queue.root = a;
    } else if (a < 0) {
        queue.root = b;
    } else {
        queue.root = merge(node, a, b, before);
    }
    return n;
}

/// Of the devices that have a ready op and are not busy, returns the one whose first op precedes the others'; -1 if no device
/// is. `d`: only this device and those that conflict with it are asked; -1 for all. `precedes(a, b)`: of two queues.
template <class Queues, class Conflict, class Precedes>
Index first_among(const Queues& queue, const Conflict& conflict, Index devices, Index d, const Precedes& precedes) {
    Index first = -1;
    for (Index c = 0; c < devices; ++c) {
        if (queue[at(c)].busy || queue[at(c)].empty() || !(d < 0 || c == d || conflict(at(c), at(d)))) continue;
        if (first < 0 || precedes(queue[at(c)], queue[at(first)])) first = c;
    }
    return first;
}

}  // namespace placeit
