#include "placers/list_scheduling.hpp"

#include <functional>
#include <queue>
#include <stdexcept>
#include <vector>

namespace placeit {
namespace {

/// Writes when all inputs of op `v` are on each device, [D] seconds, as `last_arrival` returns it; not before what stands
/// there.
void last_arrivals(const Tables& tables, std::size_t v, Span<const std::int32_t> place, Span<const double> finish,
                   Span<double> ready) {
    for (std::size_t i = tables.op[v].in_first; i < tables.op[v + 1].in_first; ++i) {
        const std::size_t p = tables.in_edge[i], u = tables.edge[p].tail, from = static_cast<std::size_t>(place[u]);
        for (std::size_t to = 0; to < ready.size(); ++to) {
            ready[to] = std::max(ready[to], arrival(tables, p, from, to, finish[u]));
        }
    }
}

void check_order(const Tables& tables, Span<const std::int32_t> order) {
    std::vector<std::int32_t> waiting(order.size());
    for (std::size_t v = 0; v < waiting.size(); ++v) waiting[v] = tables.op[v].indegree;
    for (const std::int32_t next : order) {
        const auto v = static_cast<std::size_t>(next);
        if (v >= waiting.size() || waiting[v]-- != 0) {
            throw std::invalid_argument("'order' must name every op once, after those that it reads from.");
        }
        for (std::size_t p = tables.op[v].first; p < tables.op[v + 1].first; ++p) --waiting[tables.edge[p].head];
    }
}

}  // namespace

Busy::Gap Busy::earliest(double ready, double duration) const {
    // gaps before a slot that ends by then are of no use
    auto slot = std::partition_point(slots_.begin(), slots_.end(), [ready](const Slot& one) { return one.end <= ready; });
    double at = ready;
    for (; slot != slots_.end() && at + duration > slot->begin; ++slot) at = std::max(at, slot->end);
    return {at, slot - slots_.begin()};
}

void Busy::add(Slot added) {
    const auto ends_before = [&added](const Slot& one) {
        return one.end < added.begin || (one.end == added.begin && one.begin <= added.begin);
    };
    const auto slot = std::find_if_not(slots_.begin(), slots_.end(), ends_before);
    auto behind = slot;
    for (; behind != slots_.end() && behind->begin < added.end && behind->end > added.begin; ++behind) {
        added = {std::min(added.begin, behind->begin), std::max(added.end, behind->end)};
    }
    if (behind == slot) {
        slots_.insert(slot, added);
    } else {
        *slot = added;
        slots_.erase(slot + 1, behind);
    }
}

Planner::Planner(const Tables& tables, Grid<const double> compute, Span<const double> memory, LinkModel links, const Plan& plan)
    : tables_(tables),
      compute_(compute),
      memory_(memory),
      plan_(plan),
      busy_(memory.size()),
      used_(memory.size()),
      ready_(memory.size()),
      gap_(memory.size()) {
    if (links == LinkModel::contention_free) return;
    channel_.resize(memory.size() * memory.size());
    arrived_ = Matrix<double>(static_cast<std::size_t>(tables.tensors), memory.size(), infinity);
    sent_.resize(memory.size());
}

/// When the inputs of an op are on a device, over channels that carry one tensor at a time. `book` is told of each transfer
/// that has not been made yet: position of the edge, gap of the channel, when the transfer ends and when the tensor is there.
template <class Book>
double Planner::fetch(std::size_t v, std::size_t device, const Book& book) {
    double ready = 0.0;
    for (std::size_t i = tables_.op[v].in_first; i < tables_.op[v + 1].in_first; ++i) {
        sent_[static_cast<std::size_t>(plan_.place[tables_.edge[tables_.in_edge[i]].tail])] = 0.0;
    }
    for (std::size_t i = tables_.op[v].in_first; i < tables_.op[v + 1].in_first; ++i) {
        const std::size_t p = tables_.in_edge[i];
        const Edge& edge = tables_.edge[p];
        const auto from = static_cast<std::size_t>(plan_.place[edge.tail]);
        if (from == device) {
            ready = std::max(ready, plan_.finish[edge.tail]);
        } else if (arrived_(edge.tensor, device) < infinity) {
            ready = std::max(ready, arrived_(edge.tensor, device));
        } else if (edge.enters) {
            const double seconds = tables_.link(from, device).seconds(edge.size);
            const double begin = std::max(plan_.finish[edge.tail], sent_[from]);
            const Busy::Gap gap = channel_[from * memory_.size() + device].earliest(begin, seconds);
            const double until = gap.at + seconds;
            const double there = tables_.cut.empty() ? until : until + tables_.cut(p, from) + tables_.cut(p, device);
            sent_[from] = until;
            ready = std::max(ready, there);
            book(p, gap, until, there);
        }
    }
    return ready;
}

void Planner::look(std::size_t v) {
    std::fill(ready_.begin(), ready_.end(), 0.0);
    if (channel_.empty()) {
        last_arrivals(tables_, v, plan_.place, plan_.finish, ready_);
    } else {
        for (std::size_t d = 0; d < ready_.size(); ++d) {
            if (compute_(v, d) != infinity) ready_[d] = fetch(v, d, [](std::size_t, const Busy::Gap&, double, double) {});
        }
    }
    for (std::size_t d = 0; d < ready_.size(); ++d) {
        if (compute_(v, d) != infinity) gap_[d] = busy_[d].earliest(ready_[d], compute_(v, d));
    }
}

void Planner::put(std::size_t v, std::size_t device) {
    const Slot slot{start(device), finish(v, device)};
    plan_.place[v] = static_cast<std::int32_t>(device);
    plan_.start[v] = slot.begin;
    plan_.finish[v] = slot.end;
    used_[device] += tables_.op[v].param_bytes;
    busy_[device].fill(gap_[device], slot.end);
    for (std::size_t d = 0; d < busy_.size() && !tables_.conflict.empty(); ++d) {
        if (tables_.conflict(device, d)) busy_[d].add(slot);
    }
    if (channel_.empty()) return;
    fetch(v, device, [this, device](std::size_t p, const Busy::Gap& gap, double until, double there) {
        arrived_(tables_.edge[p].tensor, device) = there;
        channel_[static_cast<std::size_t>(plan_.place[tables_.edge[p].tail]) * memory_.size() + device].fill(gap, until);
    });
}

void upward_ranks(const Tables& tables, Span<const double> compute, Span<const double> comm, Span<double> rank) {
    for (std::size_t i = rank.size(); i-- > 0;) {
        const std::size_t v = tables.op[i].order;
        double longest = 0.0;
        for (std::size_t p = tables.op[v].first; p < tables.op[v + 1].first; ++p) {
            longest = std::max(longest, comm[p] + rank[tables.edge[p].head]);
        }
        rank[v] = compute[v] + longest;
    }
}

void downward_ranks(const Tables& tables, Span<const double> compute, Span<const double> comm, Span<double> rank) {
    std::fill(rank.begin(), rank.end(), 0.0);
    for (std::size_t i = 0; i < rank.size(); ++i) {
        const std::size_t v = tables.op[i].order;
        for (std::size_t p = tables.op[v].first; p < tables.op[v + 1].first; ++p) {
            double& next = rank[tables.edge[p].head];
            next = std::max(next, rank[v] + compute[v] + comm[p]);
        }
    }
}

void optimistic_costs(const Tables& tables, Span<const double> comm, Grid<double> cost) {
    const std::size_t devices = cost.columns();
    std::vector<double> onward(devices);  // seconds from the start of a consumer on each device to the end
    std::fill(cost.all().begin(), cost.all().end(), 0.0);
    for (std::size_t i = cost.rows(); i-- > 0;) {
        const std::size_t w = tables.op[i].order;
        double least = infinity;
        for (std::size_t d = 0; d < devices; ++d) {
            onward[d] = tables.compute(w, d) + cost(w, d);
            least = std::min(least, onward[d]);
        }
        for (std::size_t j = tables.op[w].in_first; j < tables.op[w + 1].in_first; ++j) {
            const std::size_t p = tables.in_edge[j], v = tables.edge[p].tail;
            const double elsewhere = least + comm[p];
            for (std::size_t d = 0; d < devices; ++d) cost(v, d) = std::max(cost(v, d), std::min(onward[d], elsewhere));
        }
    }
}

void ready_order(const Tables& tables, Span<const std::int32_t> by_priority, Span<std::int32_t> order) {
    const std::size_t ops = order.size();
    std::vector<std::int32_t> waiting(ops);
    std::vector<std::size_t> turn(ops, ops);  // of each op in by_priority
    for (std::size_t i = 0; i < ops; ++i) {
        const auto v = static_cast<std::size_t>(by_priority[i]);
        if (v >= ops || turn[v] != ops) throw std::invalid_argument("'by_priority' must name every op once.");
        turn[v] = i;
        waiting[v] = tables.op[v].indegree;
    }
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;  // by turn
    for (const std::int32_t v : tables.entries) ready.push(turn[static_cast<std::size_t>(v)]);
    for (std::int32_t& next : order) {
        next = by_priority[ready.top()];
        ready.pop();
        const auto v = static_cast<std::size_t>(next);
        for (std::size_t p = tables.op[v].first; p < tables.op[v + 1].first; ++p) {
            const std::size_t w = tables.edge[p].head;
            if (--waiting[w] == 0) ready.push(turn[w]);
        }
    }
}

bool insertion_schedule(const Tables& tables, Span<const std::int32_t> order, Grid<const double> compute,
                        Grid<const double> onward, Span<const double> memory, LinkModel links, const Plan& plan) {
    check_order(tables, order);
    Planner planner(tables, compute, memory, links, plan);
    for (const std::int32_t next : order) {
        const auto v = static_cast<std::size_t>(next);
        planner.look(v);
        std::size_t best = memory.size();
        double least = infinity;
        for (std::size_t d = 0; d < memory.size(); ++d) {
            if (!planner.takes(v, d) || !(planner.finish(v, d) + onward(v, d) < least)) continue;
            best = d;
            least = planner.finish(v, d) + onward(v, d);
        }
        if (best == memory.size()) return false;
        planner.put(v, best);
    }
    return true;
}

void earliest_start_placement(const Tables& tables, Span<const std::int32_t> order, Grid<const double> lots,
                              Span<std::int32_t> place) {
    check_order(tables, order);
    const std::size_t devices = lots.columns();
    std::vector<double> finish(place.size()), free(devices), start(devices);
    for (const std::int32_t next : order) {
        const auto v = static_cast<std::size_t>(next);
        std::copy(free.begin(), free.end(), start.begin());
        last_arrivals(tables, v, place, finish, start);
        std::size_t best = devices;
        for (std::size_t d = 0; d < devices; ++d) {
            if (tables.compute(v, d) == infinity) continue;
            if (best == devices || start[d] < start[best] || (start[d] == start[best] && lots(v, d) < lots(v, best))) best = d;
        }
        if (best == devices) throw std::invalid_argument("'tables' has an op that can run on no device.");
        place[v] = static_cast<std::int32_t>(best);
        finish[v] = start[best] + tables.compute(v, best);
        free[best] = finish[v];
        for (std::size_t d = 0; d < devices && !tables.conflict.empty(); ++d) {
            if (tables.conflict(best, d)) free[d] = std::max(free[d], finish[v]);
        }
    }
}

}  // namespace placeit
