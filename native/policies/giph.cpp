#include "policies/giph.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace placeit {
namespace {

double squash(double x) {
    return x >= 0 ? std::log1p(x) : -std::log1p(-x);
}

float squashed(double x) {
    return static_cast<float>(squash(x));
}

}  // namespace

GpNet::GpNet(const Tables& tables, const GpNetLayout& layout)
    : tables_(tables),
      node_(layout.node.rows(), layout.node.columns()),
      first_(layout.first.begin(), layout.first.end()),
      bandwidth_(layout.bandwidth),
      unit_(layout.unit),
      pivots_(layout.pivots),
      simulation_(tables, 1),
      first_device_{0},
      link_share_(tables.link.rows(), tables.link.columns()),
      link_delay_(tables.link.rows(), tables.link.columns()),
      tail_(tables.compute.rows()) {
    std::copy(layout.node.all().begin(), layout.node.all().end(), node_.values().begin());
    for (std::size_t v = 0; v < tail_.size(); ++v) {
        for (std::size_t d = 0; d < tables.compute.columns(); ++d) {
            node_rows_ = std::max(node_rows_, static_cast<std::size_t>(node_(v, d) + 1));
            if (!std::isfinite(tables.compute(v, d))) continue;
            if (node_(v, d) < 0) throw std::invalid_argument("'node' has no row for an op on a device that can run it.");
            devices_.push_back(static_cast<std::int32_t>(d));
        }
        first_device_.push_back(devices_.size());
    }
    for (std::size_t p = 0; p < tables.edge.size(); ++p) {
        const auto choices = [&](std::size_t v) { return first_device_[v + 1] - first_device_[v]; };
        const std::size_t rows = pivots_ ? 1 : choices(tables.edge[p].tail) + choices(tables.edge[p].head) - 1;
        edge_rows_ = std::max(edge_rows_, static_cast<std::size_t>(first_[p]) + rows);
    }
    for (std::size_t i = 0; i < link_share_.rows(); ++i) {
        for (std::size_t j = 0; j < link_share_.columns(); ++j) {
            link_share_(i, j) = static_cast<float>(1.0 / (1.0 + tables.link(i, j).bandwidth / bandwidth_));
            link_delay_(i, j) = squashed(tables.link(i, j).latency / unit_);
        }
    }
}

bool GpNet::is_feasible(Span<const std::int32_t> place) const {
    for (std::size_t v = 0; v < place.size(); ++v) {
        if (!std::isfinite(tables_.compute(v, place[v]))) return false;
    }
    return true;
}

double GpNet::set(Span<const std::int32_t> place, const GpNetBatch& batch) {
    for (std::size_t p = 0; p < tables_.edge.size(); ++p) connect(place, p, batch);
    return observe(place, batch.nodes);
}

double GpNet::move(std::size_t op, Span<const std::int32_t> place, const GpNetBatch& batch) {
    const Op &at = tables_.op[op], &next = tables_.op[op + 1];
    for (std::size_t i = at.in_first; i < next.in_first; ++i) connect(place, tables_.in_edge[i], batch);
    for (std::size_t p = at.first; p < next.first; ++p) connect(place, p, batch);
    return observe(place, batch.nodes);
}

/// The devices that the nodes of an op are on; `here`: where it is placed.
Span<const std::int32_t> GpNet::options(std::size_t op, const std::int32_t& here) const {
    if (pivots_) return {&here, 1};
    return {devices_.data() + first_device_[op], first_device_[op + 1] - first_device_[op]};
}

/// Write the edges of a task edge (Algorithm gpNet, lines 13 to 20): the task edge (i, j) has the rows (pivot of i) -> (j, d)
/// for every d, then (i, d) -> (pivot of j) for every d but i's own.
void GpNet::connect(Span<const std::int32_t> place, std::size_t position, const GpNetBatch& batch) const {
    const Edge& edge = tables_.edge[position];
    const std::size_t i = edge.tail, j = edge.head;
    const double size = edge.size / bandwidth_;
    const float bytes = squashed(size / unit_);
    auto row = static_cast<std::size_t>(first_[position]);
    const auto write = [&](std::size_t source, std::size_t target) {
        batch.src[row] = node_(i, source);
        batch.dst[row] = node_(j, target);
        const auto x = batch.edges.row(row++);
        x[0] = bytes;
        if (source == target) {
            x[1] = x[2] = x[3] = 0.0f;
            return;
        }
        const Link& link = tables_.link(source, target);
        double seconds = link.latency + size / (link.bandwidth / bandwidth_);
        if (!tables_.cut.empty()) seconds += tables_.cut(position, source) + tables_.cut(position, target);
        x[1] = link_share_(source, target);
        x[2] = link_delay_(source, target);
        x[3] = squashed(seconds / unit_);
    };
    for (const std::int32_t d : options(j, place[j])) write(place[i], d);
    for (const std::int32_t d : options(i, place[i])) {
        if (d != place[i]) write(d, place[j]);
    }
}

/// Seconds that the edge at a position adds between two devices.
double GpNet::transfer(std::size_t position, std::size_t source, std::size_t target) const {
    if (source == target) return 0.0;
    const double seconds = tables_.link(source, target).seconds(tables_.edge[position].size);
    return tables_.cut.empty() ? seconds : seconds + (tables_.cut(position, source) + tables_.cut(position, target));
}

/// Time from the start of each op to the end, on the schedule as it is: consumers and the next op of the device wait for it.
void GpNet::time_tails(Span<const std::int32_t> place) {
    std::vector<std::int32_t> by_start(place.size()), after(place.size(), -1), last(tables_.link.rows(), -1);
    std::iota(by_start.begin(), by_start.end(), 0);
    std::stable_sort(by_start.begin(), by_start.end(),
                     [&](std::int32_t a, std::int32_t b) { return simulation_.start(a) < simulation_.start(b); });
    for (const std::int32_t v : by_start) {
        if (last[place[v]] >= 0) after[last[place[v]]] = v;
        last[place[v]] = v;
    }
    for (std::size_t t = by_start.size(); t-- > 0;) {
        const std::int32_t v = by_start[t], here = place[v];
        double longest = after[v] >= 0 ? tail_[after[v]] : 0.0;
        for (std::size_t p = tables_.op[v].first; p < tables_.op[v + 1].first; ++p) {
            const std::size_t w = tables_.edge[p].head;
            longest = std::max(longest, tail_[w] + transfer(p, here, place[w]));
        }
        tail_[v] = tables_.compute(v, here) + longest;
    }
}

double GpNet::observe(Span<const std::int32_t> place, Grid<float> nodes) {
    const double makespan = simulation_.makespan(place, {}, {});
    time_tails(place);
    const std::size_t ops = place.size(), devices = tables_.link.rows();
    std::vector<double> load(devices, 0.0), arrival(devices), leaving(devices);
    for (std::size_t v = 0; v < ops; ++v) load[place[v]] += tables_.compute(v, place[v]);
    for (std::size_t v = 0; v < ops; ++v) {
        const std::int32_t here = place[v];
        const auto on = options(v, here);
        const double start = simulation_.start(static_cast<std::int32_t>(v));
        for (const std::int32_t d : on) arrival[d] = leaving[d] = 0.0;
        for (std::size_t i = tables_.op[v].in_first; i < tables_.op[v + 1].in_first; ++i) {
            const std::size_t p = tables_.in_edge[i], u = tables_.edge[p].tail;
            const double done = simulation_.finish(static_cast<std::int32_t>(u));
            for (const std::int32_t d : on) arrival[d] = std::max(arrival[d], done + transfer(p, place[u], d));
        }
        for (std::size_t p = tables_.op[v].first; p < tables_.op[v + 1].first; ++p) {
            const std::size_t w = tables_.edge[p].head;
            for (const std::int32_t d : on) leaving[d] = std::max(leaving[d], tail_[w] + transfer(p, d, place[w]));
        }
        const float slack = squashed((makespan - start - tail_[v]) / unit_);
        for (const std::int32_t d : on) {
            const auto x = nodes.row(static_cast<std::size_t>(node_(v, d)));
            const double seconds = tables_.compute(v, d);
            x[3] = squashed((arrival[d] - start) / unit_);
            // the longest path through the op, were it on d and nothing waited there; and with what it runs among now
            x[4] = squashed((arrival[d] + seconds + leaving[d] - makespan) / unit_);
            x[5] = slack;
            x[6] = static_cast<float>((load[d] - (d == here ? seconds : 0.0)) / std::max(makespan, 1e-300));
            x[7] = d == here ? 1.0f : 0.0f;
        }
    }
    return makespan;
}

}  // namespace placeit
