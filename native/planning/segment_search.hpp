// Simulated annealing of a placement of groups by the seconds of its plan, which includes segments.
#pragma once

#include <cstdint>
#include <vector>

#include "planning/groups.hpp"
#include "planning/segments.hpp"
#include "rules/bit_generator.hpp"
#include "rules/span.hpp"

namespace placeit {

/// Which placements a search of segments may try.
struct Room {
    Matrix<Flag> feasible;            // [G, D] whether a group can run on a device
    std::vector<double> param_bytes;  // [G]
    std::vector<double> memory;       // [D] bytes
};

class SegmentSearch {
public:
    /// The groups and the generator have to outlive it.
    ///
    /// `placement`: where to start, [G]; `steps`: moves of one group that are tried in all; `heat`: first temperature, as a
    /// share of the seconds of the best plan, from which it falls to zero.
    SegmentSearch(const Groups& groups, Room room, std::vector<std::int32_t> placement, std::int64_t steps, double heat,
                  BitGenerator& random);

    /// Try the next moves.
    void advance(std::int64_t steps);

    bool over() const { return step_ >= steps_; }
    Span<const std::int32_t> best() const { return best_; }  // [G] device

private:
    void step();

    const Groups& groups_;
    Room room_;
    BitGenerator& random_;
    std::int64_t step_ = 0, steps_;
    double heat_;
    Segmentation segmentation_;
    std::vector<std::int32_t> current_, best_, segment_of_;  // [G]
    std::vector<double> used_;                               // [D] bytes
    double now_, best_seconds_;
};

}  // namespace placeit
