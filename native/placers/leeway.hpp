// How far the ops of a simulated schedule could be put off, or moved, before the makespan grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/simulation.hpp"

namespace placeit {

/// A simulated schedule with the latest times at which its ops could run.
///
/// The order of ops on each device counts as given. A transfer takes what its link does, and an op that started later than its
/// inputs and its device allow has waited for a channel, on the way of the input that arrived last. So the times are a guide
/// for a search, and no bounds.
class Leeway {
public:
    explicit Leeway(const Tables& tables);

    /// Take the schedule that was simulated last, of a placement, [V].
    void take(const Simulation& simulation, Span<const std::int32_t> place);

    double makespan() const { return makespan_; }
    /// Mean number of ops that run at the same time.
    double width() const { return width_; }
    double finish(std::size_t v) const { return finish_[v]; }
    /// Seconds that an op could finish later.
    double slack(std::size_t v) const { return latest_[v] - finish_[v]; }
    /// All ops, by start, and where an op is among them.
    Span<const std::uint32_t> order() const { return order_; }
    std::size_t turn(std::size_t v) const { return turn_[v]; }
    /// Estimate by how much the longest path through an op on a device `d` would exceed the makespan, seconds: negative if it
    /// would not reach it. `place`: as taken, but for ops that are about to move.
    double excess(std::size_t v, std::size_t d, Span<const std::int32_t> place) const;

private:
    double latest_start(std::size_t v) const { return latest_[v] - (finish_[v] - start_[v]); }
    template <class Visit>
    void each_rival(std::size_t d, Visit visit) const;

    const Tables& tables_;
    double makespan_ = 0.0, width_ = 0.0;
    std::vector<std::size_t> topological_;        // [V] position in the topological order
    std::vector<double> start_, finish_;          // [V] seconds
    std::vector<double> free_;                    // [V] when the device of each op was free for it, seconds
    std::vector<double> latest_;                  // [V] latest finish, seconds
    std::vector<std::uint32_t> order_;            // [V]
    std::vector<std::size_t> turn_;               // [V]
    std::vector<std::vector<std::uint32_t>> on_;  // [D] ops that occupy each device, by start
    std::vector<double> bound_;                   // [D] scratch: seconds
};

}  // namespace placeit
