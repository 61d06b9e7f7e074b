#include "policies/hsdag.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace placeit {

std::int64_t join_groups(Grid<const std::int64_t> edges, std::size_t kept, std::int64_t least, std::int64_t most,
                         Span<std::int64_t> group) {
    std::iota(group.begin(), group.end(), std::int64_t{0});
    const auto root = [&](std::int64_t v) {
        while (group[v] != v) v = group[v] = group[group[v]];
        return v;
    };
    auto left = static_cast<std::int64_t>(group.size());
    for (std::size_t i = 0; i < edges.rows(); ++i) {
        if (left <= (i < kept ? least : most)) continue;
        const auto [first, last] = std::minmax({root(edges(i, 0)), root(edges(i, 1))});
        if (first == last) continue;
        group[last] = first;
        --left;
    }
    std::int64_t count = 0;
    for (std::size_t v = 0; v < group.size(); ++v) {  // the root of a group is its first op
        const auto above = static_cast<std::size_t>(group[v]);
        group[v] = above == v ? count++ : group[above];
    }
    return count;
}

namespace {

/// The slope of the straight line through log N(r) over log r. `distance`: ascending, from an op to itself and others.
double slope(Span<const std::int64_t> distance) {
    const auto farthest = static_cast<double>(distance[distance.size() - 1]);
    if (farthest < 2) return 0.0;
    const auto each_point = [&](auto visit) {
        for (std::size_t i = 1; i < distance.size(); ++i) {
            if (i + 1 < distance.size() && distance[i + 1] == distance[i]) continue;
            visit(std::log(static_cast<double>(distance[i])), std::log(static_cast<double>(i)));
        }
    };
    double mean_r = 0.0, mean_n = 0.0, above = 0.0, below = 0.0;
    each_point([&](double r, double n) {
        mean_r += r / farthest;
        mean_n += n / farthest;
    });
    each_point([&](double r, double n) {
        above += (r - mean_r) * (n - mean_n);
        below += (r - mean_r) * (r - mean_r);
    });
    return above / below;
}

}  // namespace

void fractal_dimensions(Span<const std::int32_t> ptr, Span<const std::int32_t> others, Span<double> dimension) {
    const std::size_t ops = dimension.size();
    std::vector<std::int32_t> queue(ops);
    std::vector<std::int64_t> distance(ops), to(ops);  // of the ops in the queue; to each op, -1 if it has not been met
    for (std::size_t v = 0; v < ops; ++v) {
        std::fill(to.begin(), to.end(), -1);
        queue[0] = static_cast<std::int32_t>(v);
        to[v] = distance[0] = 0;
        std::size_t met = 1;
        for (std::size_t at = 0; at < met; ++at) {
            for (std::int32_t k = ptr[queue[at]]; k < ptr[queue[at] + 1]; ++k) {
                const std::int32_t w = others[k];
                if (to[w] >= 0) continue;
                queue[met] = w;
                to[w] = distance[met++] = distance[at] + 1;
            }
        }
        dimension[v] = slope(Span<const std::int64_t>(distance).first(met));
    }
}

}  // namespace placeit
