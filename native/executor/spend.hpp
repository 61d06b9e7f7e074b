// A segment that computes nothing and keeps its thread busy for a given time: for tests and benchmarks of executors.
#pragma once

#include <cstdint>

namespace placeit {

struct Spent {
    std::int64_t nanoseconds;  // to take
    std::int64_t calls;        // how often it was called
    std::int64_t status;       // the status to return, 0 unless it is to fail
};

/// An entry whose argument is a `Spent`.
int spend(void* argument);

}  // namespace placeit
