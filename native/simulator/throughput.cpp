#include "simulator/throughput.hpp"

#include <algorithm>

#include "rules/queues.hpp"

namespace placeit {
namespace {

/// Adds for how long the tensor of an opening edge `p` keeps links busy, and devices by its cuts; `sign`: -1 to take it off.
void charge(const Tables& tables, Span<const Index> place, std::size_t p, double sign, Span<double> busy) {
    const std::size_t devices = tables.memory.size(), links = devices + tables.clique.rows();
    const Edge& edge = tables.edge[p];
    const Index src = place[edge.tail], target = place[edge.head];
    if (src < 0) return;
    if (edge.following < 0) {  // most tensors: they have one consumer
        if (target < 0 || target == src) return;
        busy[links + at(src) * devices + at(target)] += sign * tables.link(at(src), at(target)).seconds(edge.size);
        if (tables.cut.empty()) return;
        busy[at(src)] += sign * tables.cut(p, at(src));
        busy[at(target)] += sign * tables.cut(p, at(target));
        return;
    }
    const auto first = static_cast<Index>(p);
    bool leaves = false;
    for (Index q = first; q >= 0; q = tables.edge[at(q)].following) {
        const Index dst = place[tables.edge[at(q)].head];
        if (dst < 0 || dst == src) continue;
        leaves = true;
        Index before = first;  // the first edge of the tensor towards this device
        while (before != q && place[tables.edge[at(before)].head] != dst) before = tables.edge[at(before)].following;
        if (before == q) {
            const double seconds = tables.link(at(src), at(dst)).seconds(tables.edge[at(q)].size);
            busy[links + at(src) * devices + at(dst)] += sign * seconds;
            if (!tables.cut.empty()) busy[at(dst)] += sign * tables.cut(at(q), at(dst));
        }
    }
    if (leaves && !tables.cut.empty()) busy[at(src)] += sign * tables.cut(p, at(src));
}

/// Sums up the devices of which only one runs at a time, and returns the seconds of the busiest resource.
double most(const Tables& tables, Span<double> busy) {
    const std::size_t devices = tables.memory.size();
    for (std::size_t k = 0; k < tables.clique.rows(); ++k) {
        double sum = 0.0;
        for (std::size_t d = 0; d < devices; ++d) sum += tables.clique(k, d) ? busy[d] : 0.0;
        busy[devices + k] = sum;
    }
    double found = 0.0;
    for (const double seconds : busy) found = std::max(found, seconds);
    return found;
}

}  // namespace

double busy_seconds(const Tables& tables, Span<const Index> place, Span<double> busy) {
    const std::size_t devices = tables.memory.size(), links = devices + tables.clique.rows();
    std::fill(busy.begin(), busy.end(), 0.0);
    held_bytes(tables, place, {&busy[links], devices});  // in entries of links, which do not count yet
    for (std::size_t v = 0; v < place.size(); ++v) {
        if (place[v] >= 0) busy[at(place[v])] += tables.compute(v, at(place[v]));
    }
    for (std::size_t d = 0; d < devices; ++d) {
        if (busy[d] == infinity || busy[links + d] > tables.memory[d]) return infinity;
        busy[links + d] = 0.0;
    }
    for (std::size_t p = 0; p < tables.edge.size(); ++p) {
        if (tables.edge[p].opens) charge(tables, place, p, 1.0, busy);
    }
    return most(tables, busy);
}

Load::Load(const Tables& tables)
    : tables_(tables),
      bytes_(tables.memory.size()),
      busy_(resources(tables)),
      before_(busy_.size()),
      charged_(tables.edge.size()) {
    opening_.resize(tables.edge.size());
    std::vector<std::uint32_t> first(tables.edge.size());  // of each tensor
    for (std::size_t p = 0; p < tables.edge.size(); ++p) {
        if (tables.edge[p].opens) first[tables.edge[p].tensor] = static_cast<std::uint32_t>(p);
        opening_[p] = first[tables.edge[p].tensor];
    }
}

double Load::set(Span<const Index> place) {
    place_.assign(place.begin(), place.end());
    held_bytes(tables_, place, bytes_);
    return busy_seconds(tables_, place, busy_);
}

double Load::move(const std::vector<std::size_t>& ops, Index to) {
    const auto target = at(to);
    before_ = busy_;
    moves_.clear();
    touched_.clear();
    for (const std::size_t v : ops) {
        const auto touch = [&](std::uint32_t p) {
            if (!charged_[p]) touched_.push_back(p);
            charged_[p] = 1;
        };
        for (std::size_t p = tables_.op[v].first; p < tables_.op[v + 1].first; ++p) touch(opening_[p]);
        for (std::size_t i = tables_.op[v].in_first; i < tables_.op[v + 1].in_first; ++i) touch(opening_[tables_.in_edge[i]]);
    }
    for (const std::uint32_t p : touched_) charge(tables_, place_, p, -1.0, busy_);
    for (const std::size_t v : ops) {
        const auto from = at(place_[v]);
        moves_.push_back({v, place_[v]});
        busy_[from] -= tables_.compute(v, from);
        busy_[target] += tables_.compute(v, target);
        bytes_[from] -= tables_.op[v].param_bytes;
        bytes_[target] += tables_.op[v].param_bytes;
        place_[v] = to;
    }
    if (!tables_.tied.empty()) held_bytes(tables_, place_, bytes_);
    for (const std::uint32_t p : touched_) {
        charge(tables_, place_, p, 1.0, busy_);
        charged_[p] = 0;
    }
    for (std::size_t d = 0; d < bytes_.size(); ++d) {
        if (bytes_[d] > tables_.memory[d]) return infinity;
    }
    return most(tables_, busy_);
}

void Load::undo() {
    busy_.swap(before_);
    for (const auto& [v, device] : moves_) {
        bytes_[at(place_[v])] -= tables_.op[v].param_bytes;
        bytes_[at(device)] += tables_.op[v].param_bytes;
        place_[v] = device;
    }
}

Index busiest_ops(const Tables& tables, Span<const Index> place, Span<const double> busy, Span<Index> ops) {
    const std::size_t devices = tables.memory.size(), links = devices + tables.clique.rows();
    const auto busiest = static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
    std::size_t count = 0;
    if (busiest >= links) {
        const auto src = static_cast<Index>((busiest - links) / devices), dst = static_cast<Index>((busiest - links) % devices);
        for (const Edge& edge : tables.edge) {
            if (place[edge.tail] != src || place[edge.head] != dst || count + 1 >= ops.size()) continue;
            ops[count++] = static_cast<Index>(edge.tail);
            ops[count++] = static_cast<Index>(edge.head);
        }
        return static_cast<Index>(count);
    }
    for (std::size_t v = 0; v < place.size(); ++v) {
        const Index d = place[v];
        if (d >= 0 && (at(d) == busiest || (busiest >= devices && tables.clique(busiest - devices, at(d))))) {
            ops[count++] = static_cast<Index>(v);
        }
    }
    return static_cast<Index>(count);
}

void seconds_per_request(const Tables& tables, Grid<const Index> placements, Span<double> seconds) {
    std::vector<double> busy(resources(tables));
    for (std::size_t b = 0; b < placements.rows(); ++b) seconds[b] = busy_seconds(tables, placements.row(b), busy);
}

}  // namespace placeit
