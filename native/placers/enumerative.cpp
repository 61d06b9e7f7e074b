#include "placers/enumerative.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "rules/argsort.hpp"
#include "rules/tables.hpp"

namespace placeit {

namespace {

/// Write the best assignment with at most `room` ops for each device; returns whether there is one. `by_seconds`: [n, D] the
/// devices of each op, fastest first.
bool enumerate(Grid<const double> seconds, Grid<const std::int32_t> by_seconds, std::int32_t room, std::int64_t limit,
               Span<std::int32_t> best) {
    const std::size_t count = seconds.rows(), devices = seconds.columns();
    std::vector<double> least(count + 1);  // least seconds of the ops from here on
    for (std::size_t i = count; i-- > 0;) least[i] = least[i + 1] + seconds(i, by_seconds(i, 0));
    std::vector<std::int32_t> used(devices), on(count, -1);
    std::vector<std::size_t> tried(count + 1);  // how many of its devices each op on the way down has tried
    std::vector<double> total(count + 1);
    double bound = infinity;
    auto depth = std::ptrdiff_t{0};
    for (std::int64_t step = 0; depth >= 0 && step < limit; ++step) {
        const auto i = static_cast<std::size_t>(depth);
        if (i == count) {
            bound = total[i];
            std::copy(on.begin(), on.end(), best.begin());
            --depth;
            continue;
        }
        if (on[i] >= 0) {
            --used[on[i]];
            on[i] = -1;
        }
        while (tried[i] < devices && on[i] < 0) {
            const std::int32_t d = by_seconds(i, tried[i]++);
            const double sum = total[i] + seconds(i, d);
            if (sum + least[i + 1] >= bound) {
                tried[i] = devices;  // the others take no less
            } else if (used[d] < room) {
                ++used[d];
                on[i] = d;
                total[i + 1] = sum;
                tried[i + 1] = 0;
            }
        }
        depth += on[i] >= 0 ? 1 : -1;
    }
    return bound < infinity;
}

}  // namespace

void spread(Grid<const double> seconds, std::int64_t limit, Span<std::int32_t> devices) {
    const std::size_t count = seconds.rows();
    Matrix<std::int32_t> by_seconds(count, seconds.columns());
    for (std::size_t i = 0; i < count; ++i) argsort(seconds.row(i), by_seconds.row(i));
    limit = std::max(limit, static_cast<std::int64_t>(count) + 2);
    // with room for all on one device each op gets its own best
    for (std::size_t room = (count + seconds.columns() - 1) / seconds.columns(); room <= count; ++room) {
        if (enumerate(seconds, by_seconds, static_cast<std::int32_t>(room), limit, devices)) return;
    }
    throw std::invalid_argument("'seconds' has an op that can run on no device.");
}

}  // namespace placeit
