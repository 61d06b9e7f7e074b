#include "planning/segment_search.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace placeit {

SegmentSearch::SegmentSearch(const Groups& groups, Room room, std::vector<std::int32_t> placement, std::int64_t steps,
                             double heat, BitGenerator& random)
    : groups_(groups),
      room_(std::move(room)),
      random_(random),
      steps_(steps),
      heat_(heat),
      segmentation_(groups),
      current_(std::move(placement)),
      best_(current_),
      segment_of_(current_.size()),
      used_(groups.devices()) {
    now_ = best_seconds_ = segmentation_.merge(current_, segment_of_);
}

void SegmentSearch::advance(std::int64_t steps) {
    // summed up anew, so that rounding does not add up
    std::fill(used_.begin(), used_.end(), 0.0);
    for (std::size_t g = 0; g < current_.size(); ++g) used_[current_[g]] += room_.param_bytes[g];
    for (const std::int64_t last = std::min(step_ + steps, steps_); step_ < last; ++step_) step();
}

void SegmentSearch::step() {
    std::int32_t g = random_.below(current_.size());
    // half of the moves take a group to where a neighbour is, the others anywhere
    std::int32_t to = random_.below(groups_.devices());
    if (!groups_.edge.empty() && random_.uniform() < 0.5) {
        const auto [u, v, tensor] = groups_.edge[random_.below(groups_.edge.size())];
        g = random_.uniform() < 0.5 ? u : v;
        to = current_[g == u ? v : u];
    }
    const std::int32_t old = current_[g];
    if (to == old || !room_.feasible(g, to) || used_[to] + room_.param_bytes[g] > room_.memory[to]) return;
    current_[g] = to;
    const double seconds = segmentation_.merge(current_, segment_of_);
    const double temperature = heat_ * best_seconds_ * (1 - static_cast<double>(step_) / static_cast<double>(steps_));
    if (!(seconds <= now_ || random_.uniform() < std::exp((now_ - seconds) / std::max(temperature, 1e-300)))) {
        current_[g] = old;
        return;
    }
    now_ = seconds;
    used_[old] -= room_.param_bytes[g];
    used_[to] += room_.param_bytes[g];
    if (now_ < best_seconds_) {
        best_ = current_;
        best_seconds_ = now_;
    }
}

}  // namespace placeit
