// The clock of time.perf_counter: seconds as Python counts them, and times to sleep until.
#pragma once

#include <algorithm>
#include <chrono>

namespace placeit {

using Clock = std::chrono::steady_clock;

inline double now() {
    return static_cast<double>(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count()) / 1e9;
}

/// A time to sleep until, at most a century from now.
inline Clock::time_point moment(double seconds) {
    seconds = std::clamp(seconds, 0.0, now() + 3e9);
    return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace placeit
