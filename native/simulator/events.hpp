// Events in virtual time, and the heap that finds the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "simulator/heap.hpp"

namespace placeit {

/// Something that happens at a time, in seconds from 0. Simultaneous events happen in the order of their keys: a sequence
/// number, shifted left by 32 bits, and what happens.
struct Event {
    std::uint64_t key = 0;
    double time = 0.0;

    Event() = default;
    // word by word: reading both words at once stalls if they were written one by one just before
    Event(const Event& other) : key(other.key), time(other.time) {}
    Event& operator=(const Event& other) {
        key = other.key;
        time = other.time;
        return *this;
    }
    Event(double seconds, std::uint64_t sequence, std::int32_t what)
        : key(sequence << 32 | static_cast<std::uint32_t>(what)), time(seconds) {}

    /// After all others.
    static Event never() { return {std::numeric_limits<double>::infinity(), 0xFFFFFFFFu, -1}; }

    std::int32_t what() const { return static_cast<std::int32_t>(key & 0xFFFFFFFFu); }
    std::uint64_t sequence() const { return key >> 32; }
    /// Whether they are parts of one event: they have a time and a sequence number in common.
    bool is_part_of(const Event& other) const { return time == other.time && sequence() == other.sequence(); }

    friend bool operator<(const Event& a, const Event& b) { return a.order() < b.order(); }

private:
    /// One number to compare without a branch: the bits of a double that is not negative are in the order of its value.
    Wide order() const {
        std::uint64_t bits;
        std::memcpy(&bits, &time, sizeof bits);
        return Wide{bits} << 64 | key;
    }
};

/// A binary heap in memory that the caller owns. When the first event has been taken, its place is left open for the next one
/// that is pushed.
class Events {
public:
    explicit Events(Event* memory) : event_(memory) {}

    bool empty() {
        close_gap();
        return count_ == 0;
    }
    const Event& first() {
        close_gap();
        return event_[0];
    }
    Event pop() {
        close_gap();
        open_ = true;
        return event_[0];
    }
    void push(const Event& event) {
        if (open_) {
            open_ = false;
            replace_first(event_, count_, event);
        } else {
            rise(event_, count_++, event);
        }
    }

private:
    void close_gap() {
        if (!open_) return;
        open_ = false;
        --count_;
        replace_first(event_, count_, Event(event_[count_]));
    }

    Event* event_;
    std::size_t count_ = 0;
    bool open_ = false;  // whether the first event was taken, and left a gap
};

}  // namespace placeit
