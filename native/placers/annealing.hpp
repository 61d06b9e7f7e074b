// Simulated annealing (Kirkpatrick et al. 1983) of placements whose cost is simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "placers/leeway.hpp"
#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/cost_model.hpp"
#include "simulator/random.hpp"
#include "simulator/throughput.hpp"

namespace placeit {

/// One search from a placement on. Half of the moves are of an op on the critical path of the current schedule.
///
/// Where there are few evaluations for the number of ops, many moves are valued by one simulation, far apart in the schedule. A
/// move is kept if ops that start soon after the moved ones finish earlier, compared with those that start shortly before.
class Annealing {
public:
    /// `model`: outlives this, without noise; `place`: [V], device numbers within range; `scale`: its cost, or a typical one,
    /// seconds; `seed`: of all moves.
    Annealing(const CostModel& model, Span<const std::int32_t> place, double scale, std::uint64_t seed);

    /// Does evaluations `first` to `last`, excluded, of `steps` in all, over which the temperature falls. The first one of all
    /// values the start itself.
    void run(std::int64_t first, std::int64_t last, std::int64_t steps);

    /// The best placement so far, [V], and its cost in seconds; infinity before there is one that can run.
    Span<const std::int32_t> best() const { return best_; }
    double seconds() const { return least_; }

private:
    /// Ops that go from one device to another together: `moved_` from `first` to `end`, excluded.
    struct Move {
        std::size_t first, end;
        std::int32_t from, to;
        bool kept;
    };

    std::size_t draw(std::size_t count);
    template <class Visit>
    void each_neighbour(std::size_t v, Visit visit) const;
    std::int32_t neighbouring_device(std::size_t v);
    std::int32_t target(std::size_t v);
    std::int32_t estimated_target(std::size_t v, double mean);
    void take_along(Move& move, std::size_t limit);
    void put(const Move& move, std::int32_t device);
    bool fits(const Move& move) const;
    void one_move(double temperature);
    bool shift_border(Move& move, std::size_t v);
    void exchange(const Move& move);
    std::size_t order(std::size_t i) const { return tables_.op[i].order; }
    int many_moves(double temperature, std::int64_t allowed);
    void propose(double mean);
    std::size_t judge(double temperature);
    void accept(double seconds, bool renew);
    void find_critical(double slack);
    const std::vector<std::int32_t>& able(std::size_t v) const { return kinds_[kind_[v]]; }

    const Tables& tables_;
    Evaluator evaluate_;
    Leeway leeway_;
    std::optional<Load> load_;  // of place_, with a capacity
    SplitMix random_;
    double scale_;
    double current_ = infinity, least_ = infinity;  // seconds, of the current placement and of the best
    std::vector<std::int32_t> place_, best_;        // [V]
    std::vector<std::vector<std::int32_t>> kinds_;  // sets of devices that can run an op
    std::vector<std::size_t> kind_;                 // [V] the set of each op
    std::vector<std::size_t> turn_;                 // [V] the place of each op in the order of the problem
    std::vector<std::size_t> movable_;              // ops that several devices can run
    std::vector<std::size_t> moved_;                // ops that the last moves have moved
    std::vector<std::size_t> back_;                 // ops that went the other way for the last move, to make room
    std::vector<Flag> moving_;                      // [V] whether they have moved an op
    std::vector<Move> moves_;                       // the last moves
    double at_once_ = 0.0;                          // how many moves to value at once; 0 before the first were
    std::vector<double> used_;                      // [D] bytes of weights under many moves
    std::vector<double> later_;                     // [V + 1] how much later ops finish, sums in the order of their starts
    std::vector<std::int32_t> critical_;            // [V] ops that determine the cost: the first `links_` entries
    std::size_t links_ = 0;
    std::size_t since_ = 0;  // evaluations since these were found
};

}  // namespace placeit
