// Optimal contiguous splits of an order of ops: each device gets one run of consecutive ops, or none.
//
// The dynamic program over one order comes from PipeDream (Narayanan et al. 2019) and from "DPL" (Tarnawski et al., "Efficient
// Algorithms for Device Placement of DNN Graph Operators", 2020), for devices of several classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// Devices that are alike: the first of them stands for all in costs.
using DeviceClass = std::vector<std::int32_t>;

/// What a split costs: the seconds of its busiest run (many requests in flight), or the seconds of all runs in turn (one
/// request).
enum class SplitCost { busiest, sum };

/// Writes the device of each op, [V], in the best split of `order`, [V] in topological order, at some of its `borders`,
/// ascending positions from 0 to V, both included. A tensor that enters a run costs its device `cut` once, and so does one that
/// leaves it; its transfer takes the mean time over all links. For `busiest`, all that enters a run is taken to come over one
/// link, which is as busy. Returns the seconds of the split; if no split can run, writes nothing and returns infinity.
double contiguous_split(const Tables& tables, Span<const std::int32_t> order, Span<const std::int32_t> borders,
                        const std::vector<DeviceClass>& classes, SplitCost cost, Span<std::int32_t> place);

}  // namespace placeit
