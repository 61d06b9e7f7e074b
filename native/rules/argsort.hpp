// The order of values, as numpy.argsort(kind="stable") gives it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "rules/span.hpp"

namespace placeit {

/// Writes the indices of ascending values, equal values in their order, NaN last.
inline void argsort(Span<const double> values, Span<std::int32_t> indices) {
    std::iota(indices.begin(), indices.end(), 0);
    std::sort(indices.begin(), indices.end(), [&](std::int32_t a, std::int32_t b) {
        const double x = values[a], y = values[b];
        if (x < y || y < x) return x < y;
        const bool last = x != x, other_last = y != y;
        return last == other_last ? a < b : other_last;
    });
}

}  // namespace placeit
