// How many requests a placement can serve: for how long one request keeps the busiest resource busy.
#pragma once

#include <cstdint>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// How many resources there are: devices, sets of devices that run one at a time, ordered pairs of devices.
inline std::size_t resources(const Tables& tables) {
    return tables.memory.size() + tables.clique.rows() + tables.memory.size() * tables.memory.size();
}

/// Writes for how many seconds one request keeps each resource busy, [D + C + D * D]; returns the most, infinity if an op
/// cannot run where it is placed or memory is too small. `place`: [V], -1 for an op that is left out.
double busy_seconds(const Tables& tables, Span<const std::int32_t> place, Span<double> busy);

/// Writes the ops that keep the busiest resource busy, [V], from the seconds that busy_seconds wrote; returns their number.
std::int32_t busiest_ops(const Tables& tables, Span<const std::int32_t> place, Span<const double> busy, Span<std::int32_t> ops);

/// Writes busy_seconds of each of a batch of placements, [B, V].
void seconds_per_request(const Tables& tables, Grid<const std::int32_t> placements, Span<double> seconds);

}  // namespace placeit
