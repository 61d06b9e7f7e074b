#include "executor/spend.hpp"

#include <chrono>

#include "executor/clock.hpp"

namespace placeit {

int spend(void* argument) {
    auto& spent = *static_cast<Spent*>(argument);
    ++spent.calls;
    if (spent.nanoseconds > 0) {
        const auto until = Clock::now() + std::chrono::nanoseconds(spent.nanoseconds);
        while (Clock::now() < until) continue;
    }
    return static_cast<int>(spent.status);
}

}  // namespace placeit
