// One request, or many, over one placement in virtual time.
#pragma once

#include <cstdint>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

enum class Memory {
    weights_only,  // weights count; too many: infinity
    track,         // live tensors are counted, too
    limit,         // too many live tensors: infinity
};

struct Options {
    LinkModel links = LinkModel::contention_free;
    Discipline discipline = Discipline::fifo;
    Memory memory = Memory::weights_only;
    double noise = 0.0;        // half width of the factor on every duration
    std::uint64_t stream = 0;  // which random factors
};

/// Seconds of one request over one placement: the workspace is allocated once, then used as often as wanted, by one thread.
class Simulation {
public:
    Simulation(const Tables& tables, std::int32_t slots);

    /// Returns seconds; infinity if an op cannot run where it is placed or memory is too small; NaN if a planned order waits
    /// for itself. `priority`: [V], or empty for the b-level under the placement.
    double makespan(Span<const std::int32_t> place, Span<const double> priority, const Options& options);

    /// When an op started and finished in the last request of slot 0, seconds.
    double start(std::int32_t op) const;
    double finish(std::int32_t op) const;

    // ... (requests, peak memory: see simulation.cpp)
};

/// Simulate ops whose seconds are known over channels, the highest b-level first; no op needs Op::in_first, order must be set.
/// Writes when each op starts, [V]; returns the makespan.
double makespan_of(Span<const Op> op, Span<const Edge> edge, Grid<const Link> link, Span<const std::int32_t> place,
                   Grid<const Flag> conflict, Span<const double> duration, Span<double> start);

}  // namespace placeit
