// Branch and bound over all placements of a problem, depth first.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// What bounds of partial placements are computed from; V ops, D devices.
struct Bounds {
    std::vector<double> tail;         // [V] least seconds from an op's end to the end of the graph
    std::vector<std::int32_t> alike;  // [D] the first device with which each device can be swapped without any change
    Matrix<Flag> cliques;             // [C, D] sets of devices of which only one runs at a time
    std::vector<double> share;        // [D] part of one second on a device in the mean of the work of sets that cover all
    bool capacity = false;            // whether the cost is the seconds per request, and not the makespan
};

class ExactSearch {
public:
    /// The tables have to outlive it.
    ExactSearch(const Tables& tables, Bounds bounds);

    struct Found {
        std::size_t placements;
        std::int64_t nodes;  // partial placements that were examined
    };
    /// Write the next placements, [N, V], that are feasible and whose lower bound is below `bound`: those that are found by
    /// examining no more than `nodes` partial placements, and N at most.
    Found next(Grid<std::int32_t> placements, double bound, std::int64_t nodes);

    bool over() const { return depth_ < 0; }
    std::size_t ops() const { return place_.size(); }

private:
    bool redundant(std::size_t device) const;
    double lower_bound(std::size_t op, std::size_t device);
    void put(std::size_t op, std::size_t device);
    void back();

    const Tables& tables_;
    Bounds bounds_;
    std::vector<double> rest_;  // [V + 1] least part of the ops from a depth on in that mean
    // op[depth_].order is the op to place next; place_ of it is the device tried last, -1 for none
    std::int64_t depth_ = 0;
    std::vector<std::int32_t> place_;    // [V]
    std::vector<double> finish_;         // [V] seconds
    std::vector<double> load_, used_;    // [D] seconds, bytes
    std::vector<std::int32_t> members_;  // [D] ops
    std::vector<double> busy_;           // see busy_seconds
};

}  // namespace placeit
