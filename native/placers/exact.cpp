#include "placers/exact.hpp"

#include <algorithm>
#include <utility>

#include "placers/list_scheduling.hpp"
#include "simulator/throughput.hpp"

namespace placeit {

ExactSearch::ExactSearch(const Tables& tables, Bounds bounds)
    : tables_(tables),
      bounds_(std::move(bounds)),
      rest_(tables.compute.rows() + 1),
      place_(tables.compute.rows(), -1),
      finish_(tables.compute.rows()),
      load_(tables.memory.size()),
      used_(tables.memory.size()),
      members_(tables.memory.size()),
      busy_(resources(tables)) {
    for (std::size_t depth = place_.size(); depth-- > 0;) {
        double least = infinity;
        for (std::size_t d = 0; d < load_.size(); ++d) {
            least = std::min(least, tables.compute(tables.op[depth].order, d) * bounds_.share[d]);
        }
        rest_[depth] = rest_[depth + 1] + least;
    }
}

ExactSearch::Found ExactSearch::next(Grid<std::int32_t> placements, double bound, std::int64_t nodes) {
    // summed up anew, so that rounding does not add up
    std::fill(load_.begin(), load_.end(), 0.0);
    std::fill(used_.begin(), used_.end(), 0.0);
    std::fill(members_.begin(), members_.end(), 0);
    for (std::int64_t i = 0; i < depth_; ++i) put(tables_.op[i].order, place_[tables_.op[i].order]);

    const auto ops = static_cast<std::int64_t>(place_.size());
    const auto devices = static_cast<std::int32_t>(load_.size());
    std::size_t found = 0;
    std::int64_t examined = 0;
    while (depth_ >= 0 && found < placements.rows() && examined < nodes) {
        if (depth_ == ops) {
            std::copy(place_.begin(), place_.end(), placements.row(found++).begin());
            back();
            continue;
        }
        const std::size_t v = tables_.op[depth_].order;
        std::int32_t d = place_[v] + 1;
        for (; d < devices; ++d) {
            if (tables_.compute(v, d) == infinity || used_[d] + tables_.op[v].param_bytes > tables_.memory[d]) continue;
            if (redundant(d)) continue;
            ++examined;
            if (lower_bound(v, d) * (1.0 - 1e-9) < bound) break;  // rounding must not cut off the optimum
        }
        if (d < devices) {
            place_[v] = d;
            put(v, d);
            if (++depth_ < ops) place_[tables_.op[depth_].order] = -1;
        } else {
            place_[v] = -1;
            back();
        }
    }
    return {found, examined};
}

void ExactSearch::put(std::size_t op, std::size_t device) {
    load_[device] += tables_.compute(op, device);
    used_[device] += tables_.op[op].param_bytes;
    ++members_[device];
}

/// Go back to the op placed last, and take it off its device.
void ExactSearch::back() {
    if (--depth_ < 0) return;
    const std::size_t op = tables_.op[depth_].order, device = place_[op];
    load_[device] -= tables_.compute(op, device);
    used_[device] -= tables_.op[op].param_bytes;
    --members_[device];
}

/// Whether a device is empty, and so is one before it that is alike: only the first is worth trying.
bool ExactSearch::redundant(std::size_t device) const {
    if (members_[device] > 0) return false;
    for (std::size_t other = 0; other < device; ++other) {
        if (bounds_.alike[other] == bounds_.alike[device] && members_[other] == 0) return true;
    }
    return false;
}

/// Return a lower bound of the cost of all placements that continue the partial one with an op on a device.
double ExactSearch::lower_bound(std::size_t op, std::size_t device) {
    const double seconds = tables_.compute(op, device);
    // no placement takes less than the mean of the loads of all sets of the cover
    double longest = seconds * bounds_.share[device] + rest_[static_cast<std::size_t>(depth_) + 1];
    for (std::size_t other = 0; other < load_.size(); ++other) longest += load_[other] * bounds_.share[other];

    const double ready =
        last_arrival(tables_, static_cast<std::int32_t>(op), static_cast<std::int32_t>(device), 0.0, place_, finish_);
    finish_[op] = ready + seconds;

    if (bounds_.capacity) {  // placed ops keep devices and links busy, wherever the rest goes
        const std::int32_t before = std::exchange(place_[op], static_cast<std::int32_t>(device));
        longest = std::max(longest, busy_seconds(tables_, place_, busy_));
        place_[op] = before;
    } else {
        longest = std::max(longest, finish_[op] + bounds_.tail[op]);
    }
    for (std::size_t k = 0; k < bounds_.cliques.rows(); ++k) {
        if (!bounds_.cliques(k, device)) continue;
        double together = seconds;
        for (std::size_t other = 0; other < load_.size(); ++other) {
            if (bounds_.cliques(k, other)) together += load_[other];
        }
        longest = std::max(longest, together);
    }
    return longest;
}

}  // namespace placeit
