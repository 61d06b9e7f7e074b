// An event that threads wait for. It is a futex, so that a signal ends the wait of the thread that it reaches; a condition
// variable would hide the signal.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>

namespace placeit {

/// A counter that any thread may raise. A thread that waits reads it, looks whether there is something to do, and then waits
/// for the counter to have another value than the one that it read.
class Event {
public:
    std::uint32_t count() const { return count_.load(std::memory_order_seq_cst); }

    /// Wait until the counter is not `seen`, or the clock shows `until`; a signal ends it early.
    void wait(std::uint32_t seen, double until) {
        timespec time{};
        const bool limited = until < 1e9 * 1e3;  // 30,000 years
        if (limited) {
            time.tv_sec = static_cast<std::time_t>(until);
            time.tv_nsec = static_cast<long>((until - std::floor(until)) * 1e9);
        }
        waiting_.fetch_add(1, std::memory_order_seq_cst);
        call(FUTEX_WAIT_BITSET_PRIVATE, seen, limited ? &time : nullptr);
        waiting_.fetch_sub(1, std::memory_order_seq_cst);
    }

    void raise() {
        count_.fetch_add(1, std::memory_order_seq_cst);
        if (waiting_.load(std::memory_order_seq_cst) > 0) {
            call(FUTEX_WAKE_PRIVATE, static_cast<std::uint32_t>(std::numeric_limits<int>::max()), nullptr);
        }
    }

private:
    void call(int operation, std::uint32_t value, const timespec* until) {
        syscall(SYS_futex, &count_, operation, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
    }

    static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "a futex is 32 bits");
    std::atomic<std::uint32_t> count_{0};
    std::atomic<int> waiting_{0};
};

}  // namespace placeit
