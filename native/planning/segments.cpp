#include "planning/segments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "rules/argsort.hpp"

namespace placeit {

namespace {

constexpr double tolerance = 1e-9;  // share by which merging may make a plan longer: rounding

}  // namespace

Segmentation::Segmentation(const Groups& groups)
    : groups_(groups),
      of_(groups.groups()),
      cut_bytes_(groups.groups()),
      by_tensor_(groups.edge.size()),
      enters_(groups.edge.size()),
      left_(groups.tensor_bytes.size()),
      busy_(groups.devices() + groups.clique.rows() + groups.devices() * groups.devices()),
      labels_(groups.groups()),
      trial_(groups.groups()),
      compact_(groups.groups()),
      rank_(groups.groups()),
      group_start_(groups.groups()) {
    std::iota(by_tensor_.begin(), by_tensor_.end(), 0);
    std::stable_sort(by_tensor_.begin(), by_tensor_.end(),
                     [&](std::int32_t a, std::int32_t b) { return groups.edge[a].tensor < groups.edge[b].tensor; });
    crossing_.reserve(groups.edge.size());
    moves_.reserve(groups.edge.size());
    edge_.reserve(groups.edge.size());
}

/// List the tensors that cross between segments, each once for every segment that it enters, and the bytes that cross.
void Segmentation::cross(Span<const std::int32_t> segment_of) {
    entered_.assign(count_, -1);
    for (const std::int32_t e : by_tensor_) {
        const Move& edge = groups_.edge[e];
        enters_[e] = std::exchange(entered_[segment_of[edge.consumer]], edge.tensor) != edge.tensor;
    }
    crossing_.clear();
    std::fill(cut_bytes_.begin(), cut_bytes_.end(), 0.0);
    std::fill(left_.begin(), left_.end(), Flag{false});
    for (std::size_t e = 0; e < groups_.edge.size(); ++e) {
        const auto& [u, v, t] = groups_.edge[e];
        const std::int32_t from = segment_of[u], to = segment_of[v];
        if (from == to) continue;
        const double bytes = groups_.tensor_bytes[t];
        if (!left_[t]) {
            left_[t] = true;
            cut_bytes_[u] += bytes;
        }
        cut_bytes_[v] += bytes;
        if (enters_[e]) crossing_.push_back({from, to, t});
    }
}

/// Number segments in topological order, first in, first out; false if no such order exists.
bool Segmentation::order(Span<const std::int32_t> segment_of) {
    cross(segment_of);
    // the moves out of segment s are crossing_[leaving_[i]], i from first_[s] to first_[s + 1]
    first_.assign(count_ + 1, 0);
    waiting_.assign(count_, 0);
    for (const Move& move : crossing_) {
        ++first_[move.producer + 1];
        ++waiting_[move.consumer];
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    leaving_.resize(crossing_.size());
    number_.assign(first_.begin(), first_.end() - 1);
    for (std::size_t m = 0; m < crossing_.size(); ++m)
        leaving_[number_[crossing_[m].producer]++] = static_cast<std::int32_t>(m);

    sequence_.clear();
    for (std::size_t s = 0; s < count_; ++s) {
        if (waiting_[s] == 0) sequence_.push_back(static_cast<std::int32_t>(s));
    }
    for (std::size_t read = 0; read < sequence_.size(); ++read) {
        const std::int32_t s = sequence_[read];
        number_[s] = static_cast<std::int32_t>(read);
        for (std::int32_t i = first_[s]; i < first_[s + 1]; ++i) {
            const std::int32_t next = crossing_[leaving_[i]].consumer;
            if (--waiting_[next] == 0) sequence_.push_back(next);
        }
    }
    if (sequence_.size() < count_) return false;
    for (std::size_t g = 0; g < of_.size(); ++g) of_[g] = number_[segment_of[g]];
    connect();
    return true;
}

/// Sort the moves by the new numbers of their ends and their tensor, and set the graph of segments to simulate next.
void Segmentation::connect() {
    moves_.clear();
    op_.assign(count_ + 1, Op{});
    for (std::size_t n = 0; n < count_; ++n) {
        const std::int32_t s = sequence_[n];
        op_[n].order = static_cast<std::uint32_t>(n);
        for (std::int32_t i = first_[s]; i < first_[s + 1]; ++i) {
            const Move& move = crossing_[leaving_[i]];
            moves_.push_back({static_cast<std::int32_t>(n), number_[move.consumer], move.tensor});
            ++op_[moves_.back().consumer].indegree;
        }
        std::sort(moves_.begin() + op_[n].first, moves_.end(),
                  [](const Move& a, const Move& b) { return std::tie(a.consumer, a.tensor) < std::tie(b.consumer, b.tensor); });
        op_[n + 1].first = static_cast<std::uint32_t>(moves_.size());
    }
    edge_.resize(moves_.size());
    for (std::size_t m = 0; m < moves_.size(); ++m) {
        Edge& edge = edge_[m] = Edge{};
        edge.tail = static_cast<std::uint32_t>(moves_[m].producer);
        edge.head = static_cast<std::uint32_t>(moves_[m].consumer);
        edge.tensor = static_cast<std::uint32_t>(moves_[m].tensor);
        edge.size = groups_.tensor_bytes[moves_[m].tensor];
        edge.following = edge.shared = -1;
    }
    for (std::size_t s = 0; s < count_; ++s) {
        std::int32_t shared = 0;
        for (std::uint32_t m = op_[s].first; m < op_[s + 1].first; ++m) {
            std::uint32_t n = m + 1;
            while (n < op_[s + 1].first && edge_[n].tensor != edge_[m].tensor) ++n;
            if (n == op_[s + 1].first) continue;
            if (edge_[m].shared < 0) edge_[m].shared = shared++;
            edge_[m].following = static_cast<std::int32_t>(n);
            edge_[n].shared = edge_[m].shared;
        }
    }
    simulation_.take({op_, edge_, groups_.link, groups_.conflict});
}

/// Compute the seconds of segments as sums of their parts. The extra seconds of a group while other devices work count by the
/// share of the segment's time in which they work, in the schedule without these seconds; if several others can work at once,
/// by the mean of their shares. With many requests in flight, it is the share of all time for which they are busy.
void Segmentation::price(Span<const std::int32_t> devices) {
    seconds_.assign(count_, 0.0);
    load_.assign(count_, 0.0);
    place_.assign(count_, 0);
    runs_.assign(count_, false);
    for (std::size_t g = 0; g < of_.size(); ++g) {
        const std::int32_t d = devices[g], s = of_[g];
        place_[s] = d;
        seconds_[s] += groups_.core(g, d) + groups_.cut_per_byte(g, d) * cut_bytes_[g];
        load_[s] += groups_.load(g, d);
        if (!groups_.passthrough[g] && !runs_[s]) {
            runs_[s] = true;
            seconds_[s] += groups_.dispatch[d];
        }
    }
    for (const Move& move : moves_) {
        const std::int32_t to = place_[move.consumer];
        if (place_[move.producer] != to) seconds_[move.consumer] += groups_.read[to] * groups_.tensor_bytes[move.tensor];
    }
    for (std::size_t s = 0; s < count_; ++s) {
        if (!runs_[s]) seconds_[s] = 0.0;
    }
    if (groups_.steady()) {
        slow_down_steadily();
    } else if (std::any_of(place_.begin(), place_.end(), [&](std::int32_t d) { return d != place_[0]; }) &&
               std::any_of(load_.begin(), load_.end(), [](double more) { return more != 0.0; })) {
        slow_down_by_overlap();
    }
}

void Segmentation::slow_down_steadily() {
    const double most = std::max(find_busy(), 1e-300);
    beside_.assign(groups_.devices(), 0.0);
    for (std::size_t d = 0; d < groups_.devices(); ++d) {
        for (std::size_t other = 0; other < groups_.devices(); ++other) {
            beside_[d] += groups_.beside(d, other) * (busy_[other] / most + groups_.outside[other]);
        }
    }
    for (std::size_t s = 0; s < count_; ++s) {
        if (runs_[s] && seconds_[s] > 0) seconds_[s] = std::max(0.0, seconds_[s] + load_[s] * beside_[place_[s]]);
    }
}

void Segmentation::slow_down_by_overlap() {
    simulate();
    start_.resize(count_);
    end_.resize(count_);
    for (std::size_t s = 0; s < count_; ++s) {
        start_[s] = simulation_.start(static_cast<std::int32_t>(s));
        end_[s] = start_[s] + seconds_[s];
    }
    share_.resize(groups_.devices() * count_);  // [D, S] of the time in which a device works, for each segment
    for (std::size_t d = 0; d < groups_.devices(); ++d) {
        for (std::size_t s = 0; s < count_; ++s) {
            const auto own = static_cast<std::size_t>(place_[s]);
            share_[d * count_ + s] = own == d ? 0.0 : groups_.beside(own, d);
        }
    }
    beside_.assign(count_, 0.0);
    for (std::size_t o = 0; o < count_; ++o) {
        const double* share = share_.data() + static_cast<std::size_t>(place_[o]) * count_;
        const double begin = start_[o], end = end_[o];
        for (std::size_t s = 0; s < count_; ++s) {  // no branches: several segments at once
            const double both = std::min(end_[s], end) - std::max(start_[s], begin);
            beside_[s] += share[s] * std::max(0.0, both);
        }
    }
    for (std::size_t s = 0; s < count_; ++s) {
        if (runs_[s] && seconds_[s] > 0) seconds_[s] = std::max(0.0, seconds_[s] + load_[s] * (beside_[s] / seconds_[s]));
    }
}

/// Find for how many seconds one request keeps devices, sets of devices and links busy; returns the most. This is the result of
/// busy_seconds for the plan of a partition, without a problem to build first.
double Segmentation::find_busy() {
    const std::size_t devices = groups_.devices(), sets = groups_.clique.rows();
    std::fill(busy_.begin(), busy_.end(), 0.0);
    for (std::size_t s = 0; s < count_; ++s) busy_[place_[s]] += seconds_[s];
    for (std::size_t k = 0; k < sets; ++k) {
        for (std::size_t d = 0; d < devices; ++d) {
            if (groups_.clique(k, d)) busy_[devices + k] += busy_[d];
        }
    }
    for (std::size_t m = 0; m < moves_.size(); ++m) {
        const auto [producer, consumer, tensor] = moves_[m];
        const std::int32_t src = place_[producer], dst = place_[consumer];
        if (src == dst) continue;
        bool fresh = true;  // a tensor goes to a device once, however many segments read it there
        for (std::size_t n = m; fresh && n-- > 0 && moves_[n].producer == producer;) {
            fresh = moves_[n].tensor != tensor || place_[moves_[n].consumer] != dst;
        }
        if (fresh) {
            const std::size_t link = devices + sets + static_cast<std::size_t>(src) * devices + static_cast<std::size_t>(dst);
            busy_[link] += groups_.link(src, dst).seconds(groups_.tensor_bytes[tensor]);
        }
    }
    return *std::max_element(busy_.begin(), busy_.end());
}

/// Simulate the segments: priority queues by b-level, one transfer at a time per link; returns the makespan.
double Segmentation::simulate() {
    return simulation_.run(place_, seconds_, {}, LinkModel::channel, Discipline::priority);
}

bool Segmentation::divide(Span<const std::int32_t> segment_of, std::int32_t count, Span<const std::int32_t> devices) {
    count_ = static_cast<std::size_t>(count);
    if (!order(segment_of)) return false;
    price(devices);
    return true;
}

/// Return the makespan of segments given by labels from 0 to G - 1, if steady the seconds per request, and find when the
/// segment of each group starts. NaN if segments would wait for each other in a cycle.
double Segmentation::value(Span<const std::int32_t> labels, Span<const std::int32_t> devices) {
    number_.assign(labels.size(), -1);
    std::int32_t count = 0;
    for (std::size_t g = 0; g < labels.size(); ++g) {
        if (number_[labels[g]] < 0) number_[labels[g]] = count++;
        compact_[g] = number_[labels[g]];
    }
    if (!divide(compact_, count, devices)) return std::numeric_limits<double>::quiet_NaN();
    const double makespan = simulate();
    if (!groups_.steady()) return makespan + host_seconds(groups_.host, devices);
    return std::max(find_busy(), makespan / groups_.in_flight);
}

double Segmentation::merge(Span<const std::int32_t> devices, Span<std::int32_t> segment_of) {
    const std::size_t groups = groups_.groups();
    std::iota(labels_.begin(), labels_.end(), 0);
    std::copy(labels_.begin(), labels_.end(), segment_of.begin());
    for (std::size_t g = 0; g < groups; ++g) {
        if (groups_.core(g, devices[g]) == infinity) return infinity;
    }
    if (std::all_of(devices.begin(), devices.end(), [&](std::int32_t d) { return d == devices[0]; })) {
        std::fill(segment_of.begin(), segment_of.end(), 0);
        return value(segment_of, devices);
    }
    const auto note_starts = [&] {
        for (std::size_t g = 0; g < groups; ++g) group_start_[g] = simulation_.start(of_[g]);
    };
    double best = value(labels_, devices);
    if (std::isnan(best)) return best;
    note_starts();
    for (bool merged = true; merged;) {
        merged = false;
        // the groups of each device in the order in which their segments start
        argsort(group_start_, rank_);
        for (std::int32_t d = 0; d < static_cast<std::int32_t>(groups_.devices()); ++d) {
            std::int32_t previous = -1;
            for (const std::int32_t g : rank_) {
                if (devices[g] != d || groups_.passthrough[g]) continue;
                if (previous >= 0 && labels_[previous] != labels_[g]) {
                    std::replace_copy(labels_.begin(), labels_.end(), trial_.begin(), labels_[g], labels_[previous]);
                    const double makespan = value(trial_, devices);
                    if (makespan <= best * (1 + tolerance)) {  // false for NaN
                        labels_.swap(trial_);
                        std::copy(compact_.begin(), compact_.end(), segment_of.begin());
                        best = makespan;
                        note_starts();
                        merged = true;
                    }
                }
                previous = g;
            }
        }
    }
    return best;
}

}  // namespace placeit
