#include "placers/leeway.hpp"

#include <algorithm>
#include <tuple>

#include "placers/list_scheduling.hpp"

namespace placeit {
namespace {

constexpr int kGaps = 6;  // gaps that are looked at for an op on another device

}  // namespace

Leeway::Leeway(const Tables& tables)
    : tables_(tables),
      topological_(tables.compute.rows()),
      start_(tables.compute.rows()),
      finish_(tables.compute.rows()),
      free_(tables.compute.rows()),
      latest_(tables.compute.rows()),
      order_(tables.compute.rows()),
      turn_(tables.compute.rows()),
      on_(tables.memory.size()),
      bound_(tables.memory.size()) {
    for (std::size_t i = 0; i < order_.size(); ++i) {
        order_[i] = tables.op[i].order;
        topological_[order_[i]] = i;
    }
}

/// Visits a device and those that conflict with it.
template <class Visit>
void Leeway::each_rival(std::size_t d, Visit visit) const {
    visit(d);
    for (std::size_t c = 0; c < on_.size() && !tables_.conflict.empty(); ++c) {
        if (c != d && tables_.conflict(d, c)) visit(c);
    }
}

void Leeway::take(const Simulation& simulation, Span<const std::int32_t> place) {
    double busy = 0.0;
    makespan_ = 0.0;
    for (std::size_t v = 0; v < place.size(); ++v) {
        start_[v] = simulation.start(static_cast<std::int32_t>(v));
        finish_[v] = simulation.finish(static_cast<std::int32_t>(v));
        makespan_ = std::max(makespan_, finish_[v]);
        busy += finish_[v] - start_[v];
    }
    width_ = makespan_ > 0 ? busy / makespan_ : 1.0;
    std::sort(order_.begin(), order_.end(), [this](std::uint32_t a, std::uint32_t b) {
        return std::tie(start_[a], finish_[a], topological_[a]) < std::tie(start_[b], finish_[b], topological_[b]);
    });
    for (auto& ops : on_) ops.clear();
    std::fill(bound_.begin(), bound_.end(), 0.0);
    for (std::size_t i = 0; i < order_.size(); ++i) {
        const std::uint32_t v = order_[i];
        const auto d = static_cast<std::size_t>(place[v]);
        turn_[v] = i;
        free_[v] = bound_[d];
        each_rival(d, [&](std::size_t c) {
            on_[c].push_back(v);
            bound_[c] = std::max(bound_[c], finish_[v]);
        });
    }
    std::fill(latest_.begin(), latest_.end(), makespan_);
    std::fill(bound_.begin(), bound_.end(), makespan_);  // when the next op of each device has to start
    for (std::size_t i = order_.size(); i-- > 0;) {
        const std::uint32_t v = order_[i];
        const auto d = static_cast<std::size_t>(place[v]);
        latest_[v] = std::min(latest_[v], bound_[d]);
        const double begin = latest_start(v);
        each_rival(d, [&](std::size_t c) { bound_[c] = std::min(bound_[c], begin); });
        const auto arrives = [&](std::size_t k) {
            const std::size_t p = tables_.in_edge[k], u = tables_.edge[p].tail;
            return arrival(tables_, p, static_cast<std::size_t>(place[u]), d, finish_[u]);
        };
        const std::size_t first = tables_.op[v].in_first, end = tables_.op[v + 1].in_first;
        std::size_t last = first;
        double ready = 0.0;
        for (std::size_t k = first; k < end; ++k) {
            const double at = arrives(k);
            if (at > ready) last = k;
            ready = std::max(ready, at);
        }
        for (std::size_t k = first; k < end; ++k) {
            const std::size_t u = tables_.edge[tables_.in_edge[k]].tail;
            const double arrived = k == last && start_[v] > std::max(ready, free_[v]) ? start_[v] : arrives(k);
            latest_[u] = std::min(latest_[u], begin - (arrived - finish_[u]));
        }
    }
}

double Leeway::excess(std::size_t v, std::size_t d, Span<const std::int32_t> place) const {
    const double seconds = tables_.compute(v, d);
    double begin = last_arrival(tables_, static_cast<std::int32_t>(v), static_cast<std::int32_t>(d), 0.0, place, finish_);
    double latest = makespan_;
    for (std::size_t p = tables_.op[v].first; p < tables_.op[v + 1].first; ++p) {
        const std::size_t w = tables_.edge[p].head;
        latest = std::min(latest, latest_start(w) - arrival(tables_, p, d, static_cast<std::size_t>(place[w]), 0.0));
    }
    const auto& ops = on_[d];
    auto next = std::partition_point(ops.begin(), ops.end(), [&](std::uint32_t u) { return finish_[u] <= begin; });
    double least = infinity;
    for (int gap = 0; gap < kGaps; ++gap) {
        const double end = begin + seconds;
        if (end - latest >= least) break;
        if (next != ops.end() && *next == v) ++next;
        if (next == ops.end()) return std::min(least, end - latest);
        least = std::min(least, end - std::min(latest, latest_start(*next)));
        begin = std::max(begin, finish_[*next++]);
    }
    return least;
}

}  // namespace placeit
