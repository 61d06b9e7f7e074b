// The heap of events that both simulators' loops take from.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace placeit {

/// Something that happens at a time, in seconds from 0. Simultaneous events happen in the order of their keys: a sequence
/// number, shifted left by 32 bits, and what happens.
struct Event {
    std::uint64_t key = 0;
    double time = 0.0;

    Event() = default;
    Event(double at_time, std::uint64_t sequence, std::int32_t what)
        : key(sequence << 32 | static_cast<std::uint32_t>(what)), time(at_time) {}

    std::int32_t what() const { return static_cast<std::int32_t>(key & 0xFFFFFFFFu); }
    std::uint64_t sequence() const { return key >> 32; }

    friend bool operator<(const Event& a, const Event& b) { return a.order() < b.order(); }

private:
    __extension__ using Wide = unsigned __int128;

    /// One number to compare without a branch: the bits of a double that is not negative are in the order of its value.
    Wide order() const {
        std::uint64_t bits;
        std::memcpy(&bits, &time, sizeof bits);
        return Wide{bits} << 64 | key;
    }
};

/// A binary heap. The place of the first event, once taken, is left open for the next one that comes.
class Events {
public:
    void reserve(std::size_t most) { heap_.resize(most + 2); }
    void clear() {
        count_ = 0;
        open_ = false;
    }
    bool empty() {
        settle();
        return count_ == 0;
    }
    std::size_t size() {
        settle();
        return count_;
    }
    const Event& first() {
        settle();
        return heap_[0];
    }
    Event pop() {
        settle();
        open_ = true;
        return heap_[0];
    }
    void push(const Event& event) {
        if (open_) {
            open_ = false;
            heap_[count_].time = std::numeric_limits<double>::infinity();
            heap_[count_].key = std::numeric_limits<std::uint64_t>::max();
            sink(event);
        } else {
            rise(count_++, event);
        }
    }

private:
    void settle() {
        if (!open_) return;
        open_ = false;
        const Event last = heap_[--count_];
        sink(last);
    }
    void rise(std::size_t i, const Event& event) {
        while (i > 0) {
            const std::size_t parent = (i - 1) / 2;
            if (!(event < heap_[parent])) break;
            heap_[i] = heap_[parent];
            i = parent;
        }
        heap_[i] = event;
    }
    /// Puts an event in place of the first one; the event behind the heap is the last of all, or this one.
    void sink(const Event& event) {
        // walk the hole down to a leaf without a branch that cannot be predicted, then let the event rise from there
        std::size_t i = 0, child = 1;
        while (child < count_) {
            child += static_cast<std::size_t>(heap_[child + 1] < heap_[child]);
            heap_[i] = heap_[child];
            i = child;
            child = 2 * child + 1;
        }
        rise(i, event);
    }

    std::vector<Event> heap_;
    std::size_t count_ = 0;
    bool open_ = false;  // whether the first event has been taken
};

}  // namespace placeit
