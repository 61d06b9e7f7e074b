// Simulated annealing (Kirkpatrick et al. 1983) of placements whose cost is simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/cost_model.hpp"
#include "simulator/random.hpp"

namespace placeit {

/// One search from a placement on. Half of the moves are of an op on the critical chain of the current schedule.
class Annealing {
public:
    /// `model`: outlives this, without noise; `place`: [V], device numbers within range; `scale`: its cost, or what costs are
    /// like, seconds; `seed`: of all moves.
    Annealing(const CostModel& model, Span<const std::int32_t> place, double scale, std::uint64_t seed);

    /// Does moves `first` to `last`, excluded, of `steps` in all, over which the temperature falls. The first one of all values
    /// the start itself.
    void run(std::int64_t first, std::int64_t last, std::int64_t steps);

    /// The best placement so far, [V], and its cost in seconds; infinity before there is one that can run.
    Span<const std::int32_t> best() const { return best_; }
    double seconds() const { return least_; }

private:
    std::size_t draw(std::size_t count);
    template <class Visit>
    void each_neighbour(std::size_t v, Visit visit) const;
    std::int32_t target(std::size_t v);
    void take_along(std::int32_t before);
    void find_critical_chain();

    const Tables& tables_;
    Evaluator evaluate_;
    SplitMix random_;
    double scale_;
    double current_ = infinity, least_ = infinity;  // seconds, of the current placement and of the best
    std::vector<std::int32_t> place_, best_;        // [V]
    std::vector<std::vector<std::int32_t>> able_;   // [V] devices that can run each op
    std::vector<std::size_t> movable_;              // ops that several devices can run
    std::vector<std::size_t> moved_;                // ops that the last move has moved
    std::vector<std::int32_t> chain_;               // [V] ops that the cost is made of, the first `links_` of it
    std::size_t links_ = 0;
    std::vector<double> start_, finish_;  // [V] seconds
};

}  // namespace placeit
