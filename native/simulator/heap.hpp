// Heaps in memory that the caller owns. Entries have an order, and never() is an entry behind all others.
#pragma once

#include <cstddef>

namespace placeit {

/// Two words, to compare without a branch.
__extension__ using Wide = unsigned __int128;

/// Puts an entry into a heap whose nodes have A children, at a leaf or where one is missing, and lets it rise to its place.
template <std::size_t A = 2, class Entry>
void rise(Entry* heap, std::size_t i, const Entry& entry) {
    while (i > 0) {
        const std::size_t parent = (i - 1) / A;
        if (!(entry < heap[parent])) break;
        heap[i] = heap[parent];
        i = parent;
    }
    heap[i] = entry;
}

/// Puts an entry in place of the first one of a heap of `count`, behind which there is room for A - 1 more.
template <std::size_t A = 2, class Entry>
void replace_first(Entry* heap, std::size_t count, const Entry& entry) {
    // walk the hole down to a leaf without a branch that cannot be predicted, then let the entry rise from there
    for (std::size_t k = 0; k + 1 < A; ++k) heap[count + k] = Entry::never();
    std::size_t i = 0, child = 1;
    while (child < count) {
        if constexpr (A == 2) {
            child += static_cast<std::size_t>(heap[child + 1] < heap[child]);
        } else {
            const std::size_t a = child + static_cast<std::size_t>(heap[child + 1] < heap[child]);
            const std::size_t b = child + 2 + static_cast<std::size_t>(heap[child + 3] < heap[child + 2]);
            child = heap[b] < heap[a] ? b : a;
        }
        heap[i] = heap[child];
        i = child;
        child = A * child + 1;
    }
    rise<A>(heap, i, entry);
}

}  // namespace placeit
