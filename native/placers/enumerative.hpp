// The shards of an op, spread evenly over devices with the least sum of seconds.
#pragma once

#include <cstdint>

#include "rules/span.hpp"

namespace placeit {

/// Place n ops on D devices, each of which takes n / D of them at most, rounded up, or more where other devices cannot run
/// them. Writes the devices with the least sum of seconds, [n], or the best that was found within `limit` steps.
///
/// `seconds`: [n, D], infinite where an op cannot run.
void spread(Grid<const double> seconds, std::int64_t limit, Span<std::int32_t> devices);

}  // namespace placeit
