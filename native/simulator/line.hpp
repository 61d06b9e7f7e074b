// Ops that wait for a device, or transfers that wait for a channel, in virtual time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "simulator/heap.hpp"

namespace placeit {

/// An op or a transfer that waits: the highest rank goes first; of equal ranks, the lowest tie.
struct Waiting {
    std::uint64_t urgency = 0;  // the rank's bits, such that the highest rank is the lowest number
    std::uint64_t key = 0;      // the tie, shifted left by 32 bits, and what waits

    Waiting() = default;
    Waiting(std::uint64_t urgent, std::int32_t tie, std::int32_t what)
        : urgency(urgent), key(std::uint64_t{static_cast<std::uint32_t>(tie)} << 32 | static_cast<std::uint32_t>(what)) {}

    std::int32_t what() const { return static_cast<std::int32_t>(key & 0xFFFFFFFFu); }

    /// After all others.
    static Waiting never() { return {~std::uint64_t{0}, -1, -1}; }

    /// The bits of doubles that are not negative are in the order of their values, the bits of others in the opposite order.
    static std::uint64_t urgency_of(double rank) {
        rank += 0.0;  // of the two zeros, take the positive one
        std::uint64_t bits;
        std::memcpy(&bits, &rank, sizeof bits);
        return bits >> 63 ? bits : ~bits & ~(std::uint64_t{1} << 63);
    }

    friend bool operator<(const Waiting& a, const Waiting& b) {
        return (Wide{a.urgency} << 64 | a.key) < (Wide{b.urgency} << 64 | b.key);
    }
};

/// Ops that wait for a device, or transfers that wait for a channel, in the order in which they came or by rank.
class Line {
public:
    std::int32_t busy = 0;  // for a device: how many run, of this one and the ones that conflict with it

    bool empty() const { return first_ == end_; }
    const Waiting& first() const { return memory_[first_]; }
    void clear() { first_ = end_ = 0, busy = 0; }
    void add(bool fifo, const Waiting& entry) {
        if (end_ + 3 >= memory_.size()) grow();
        if (fifo) {
            memory_[end_++].key = entry.key;
        } else {
            rise<4>(memory_.data(), end_++, entry);
        }
    }
    std::int32_t take(bool fifo) {
        const std::int32_t what = first().what();
        if (fifo) {
            ++first_;
        } else {
            --end_;
            replace_first<4>(memory_.data(), end_, Waiting(memory_[end_]));
        }
        return what;
    }

private:
    __attribute__((noinline, cold)) void grow() { memory_.resize(2 * memory_.size() + 8); }

    std::vector<Waiting> memory_;  // entries from first_ to end_ wait: by rank, a heap
    std::size_t first_ = 0, end_ = 0;
};

}  // namespace placeit
