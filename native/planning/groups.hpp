// Groups of ops, and what they cost alone and in segments.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// A tensor on its way between two groups, or between two segments.
struct Move {
    std::int32_t producer, consumer, tensor;
};

/// G groups, E edges between them, T tensors, D devices, C sets of devices that run one at a time.
struct Groups {
    std::vector<Move> edge;            // [E] sorted by producer
    std::vector<double> tensor_bytes;  // [T]
    Matrix<double> core;               // [G, D] seconds; infinity where a group cannot run
    Matrix<double> cut_per_byte;       // [G, D] seconds per byte that crosses the group's border
    std::vector<double> dispatch;      // [D] seconds
    Matrix<double> load;               // [G, D] extra seconds while all other devices that can work do so
    Matrix<double> beside;             // [D, D] share of another device among the ones that can work beside a device
    Matrix<Flag> conflict;             // [D, D] whether two devices never run at the same time; empty if all may
    std::vector<double> read;          // [D] seconds per byte that another device wrote
    Matrix<Link> link;                 // [D, D]
    std::vector<Flag> passthrough;     // [G] whether a group runs nothing
    Matrix<Flag> clique;               // [C, D] sets of several devices of which only one runs at a time
    std::vector<double> host;          // [D + 1] seconds that the host adds to a request, or empty if it adds nothing
    double in_flight = 0.0;            // requests in flight while a plan is valued by seconds per request; 0 for the makespan
    std::vector<double> outside;       // [D] share of the time for which something else keeps a device busy; if steady

    bool steady() const { return in_flight > 0.0; }

    std::size_t groups() const { return core.rows(); }
    std::size_t devices() const { return core.columns(); }
};

/// Throws an error that names the argument if an edge has a group or tensor that does not exist, or if edges are not sorted or
/// form a cycle.
void check(const Groups& groups);

}  // namespace placeit
