// HSDAG: groups of ops, and the fractal dimensions that its policy reads.
#pragma once

#include <cstdint>

#include "rules/span.hpp"

namespace placeit {

/// Join the ends of edges into groups (HSDAG, equations 9 and 10), edge by edge: by the first `kept` down to `least` groups, by
/// the others down to `most`. Writes the group of each op, [V]; returns how many groups there are, numbered by their first op.
std::int64_t join_groups(Grid<const std::int64_t> edges, std::size_t kept, std::int64_t least, std::int64_t most,
                         Span<std::int64_t> group);

/// Write the slope of the straight line through log N(r) over log r (HSDAG, equation 4) of each op, [V]: N(r) counts the other
/// ops at most r edges away. Zero where there are fewer than two distances.
/// The neighbours of op v are `others` from `ptr[v]` to `ptr[v + 1]`.
void fractal_dimensions(Span<const std::int32_t> ptr, Span<const std::int32_t> others, Span<double> dimension);

}  // namespace placeit
