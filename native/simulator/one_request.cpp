#include "simulator/one_request.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "simulator/random.hpp"
#include "simulator/simulation.hpp"

namespace placeit {

void b_level(const Network& network, Span<const Index> place, Span<const double> duration, Span<double> moving,
             Span<double> rank) {
    for (std::size_t i = place.size(); i-- > 0;) {
        const std::size_t v = network.op[i].order;
        const auto links = network.link.row(at(place[v]));
        double longest = 0.0;
        for (std::size_t p = network.op[v].first; p < network.op[v + 1].first; ++p) {
            const std::size_t w = network.edge[p].head;
            moving[p] = place[w] == place[v] ? 0.0 : links[at(place[w])].seconds(network.edge[p].size);
            longest = std::max(longest, rank[w] + moving[p]);
        }
        rank[v] = duration[v] + longest;
    }
}

void OneRequest::take(const Network& network) {
    network_ = network;
    ops_ = static_cast<Index>(network.op.size()) - 1;
    edges_ = static_cast<Index>(network.edge.size());
    devices_ = static_cast<Index>(network.link.rows());
    const std::size_t channels = at(devices_) * at(devices_);
    entries_.clear();
    op_.resize(at(ops_));
    waiting_.resize(at(ops_ + edges_));
    queue_.resize(at(devices_) + channels);
    channel_.resize(channels);
    transfer_.resize(at(edges_));
    moving_.resize(at(edges_));
    rank_.resize(at(ops_));
    opened_.resize(at(devices_) + 1);
    for (Index i = 0; i < ops_; ++i) {
        if (network.op[at(i)].indegree == 0) entries_.push_back(i);
        waiting_[network.op[at(i)].order].tie = i;
    }
    Index shared = 0;
    for (const Edge& edge : network.edge) shared = std::max(shared, edge.shared + 1);
    sent_ = Matrix<Sent>(at(shared), at(devices_));
    events_.reserve(at(ops_ + 2 * edges_ + devices_) + 1);
}

double OneRequest::run(Span<const Index> place, Span<const double> duration, Span<const double> priority, LinkModel links,
                       Discipline discipline, double noise, std::uint64_t stream) {
    const bool fifo = discipline == Discipline::fifo, contended = links == LinkModel::channel;
    for (Index v = 0; v < ops_; ++v) {
        OpState& op = op_[at(v)];
        op.ready = Event{};
        op.pending = network_.op[at(v)].indegree;
        op.device = place[at(v)];
    }
    if (!fifo) {
        b_level(network_, place, duration, moving_, rank_);
        const Span<const double> rank = priority.empty() ? Span<const double>(rank_) : priority;
        for (Index v = 0; v < ops_; ++v) waiting_[at(v)].rank = rank[at(v)];
    }
    std::fill_n(queue_.begin(), contended ? queue_.size() : at(devices_), Queue{});
    if (contended) std::fill(channel_.begin(), channel_.end(), Event{});
    std::fill(sent_.values().begin(), sent_.values().end(), Sent{-1, -1});
    events_.clear();
    if (fifo) return contended ? simulate<true, true>(duration, noise, stream) : simulate<true, false>(duration, noise, stream);
    return contended ? simulate<false, true>(duration, noise, stream) : simulate<false, false>(duration, noise, stream);
}

template <bool fifo>
inline void OneRequest::add(Queue& queue, Index n) {
    enqueue(fifo, waiting_.data(), queue, n, [this](Index a, Index b) {
        const Waiting &x = waiting_[at(a)], &y = waiting_[at(b)];
        return x.rank > y.rank || (x.rank == y.rank && x.tie < y.tie);
    });
}

template <bool fifo>
inline Index OneRequest::remove(Queue& queue) {
    return dequeue(fifo, waiting_.data(), queue, [this](Index a, Index b) {
        const Waiting &x = waiting_[at(a)], &y = waiting_[at(b)];
        return x.rank > y.rank || (x.rank == y.rank && x.tie < y.tie);
    });
}

/// Tell an op when, and as which event, one more of its inputs arrives.
inline void OneRequest::arrive(Index v, const Event& arrival) {
    OpState& op = op_[at(v)];
    if (op.ready < arrival) op.ready = arrival;
    if (--op.pending == 0) events_.push(op.ready);
}

template <bool fifo, bool contended>
double OneRequest::simulate(Span<const double> duration, double noise, std::uint64_t stream) {
    const Index nodes = ops_ + edges_, channels = nodes + devices_;  // events: ops, transfers' ends, devices, channels
    const bool conflicts = !network_.conflict.empty();
    const auto precedes = [this](Index a, Index b) {
        const Waiting &x = waiting_[at(a)], &y = waiting_[at(b)];
        return x.rank > y.rank || (x.rank == y.rank && x.tie < y.tie);
    };
    const auto transfer_seconds = [&](const Edge& edge, Index src, Index dst) {
        double seconds = network_.link(at(src), at(dst)).seconds(edge.size);
        if (noise > 0) {
            seconds *= factor(noise, stream, at(ops_) + std::uint64_t{edge.tensor} * at(devices_) + at(dst));
        }
        return seconds;
    };
    std::uint64_t sequence = 0;
    std::int32_t requests = 0;
    Index done = 0;
    for (const Index v : entries_) {
        const Index d = op_[at(v)].device;
        add<fifo>(queue_[at(d)], v);
        if (queue_[at(d)].busy || (conflicts && sequence > 0)) continue;  // those that conflict wake up as one
        queue_[at(d)].busy = true;
        events_.push({0.0, sequence++, nodes + d});
    }
    if (conflicts) {
        for (Index d = 0; d < devices_; ++d) queue_[at(d)].busy = false;
    }
    Event now;
    while (!events_.empty()) {
        now = events_.pop();
        const Index n = now.what();
        const double time = now.time;
        std::size_t put = 0;     // how many channels may take their next transfer once all edges have fired
        bool taken = false;      // whether the device's next op goes before what the edges bring:
        std::uint64_t turn = 0;  // its place among simultaneous events
        Index d;
        if (n < ops_) {  // an op finishes
            ++done;
            d = op_[at(n)].device;
            queue_[at(d)].busy = false;
            if (fifo && !queue_[at(d)].empty()) {
                taken = true;
                turn = sequence++;
            }
            const std::size_t end = network_.op[at(n) + 1].first;
            for (std::size_t p = network_.op[at(n)].first; p < end; ++p) {
                const Edge& edge = network_.edge[p];
                const auto w = static_cast<Index>(edge.head);
                OpState& consumer = op_[at(w)];
                const Index dst = consumer.device;
                if (dst == d) {
                    if (--consumer.pending > 0) continue;
                    if (now < consumer.ready) {
                        events_.push(consumer.ready);
                    } else {
                        add<fifo>(queue_[at(d)], w);
                    }
                    continue;
                }
                std::size_t first = p;  // position of the first edge of this tensor towards this device
                if (edge.shared >= 0) {
                    Sent& sent = sent_(at(edge.shared), at(dst));
                    if (sent.op == n) {
                        first = at(sent.position);
                    } else {
                        sent = {n, static_cast<Index>(p)};
                    }
                }
                const Index t = ops_ + static_cast<Index>(p);
                if constexpr (contended) {
                    if (first < p) continue;
                    if constexpr (!fifo) {
                        double highest = waiting_[at(w)].rank;
                        for (Index q = edge.following; q >= 0; q = network_.edge[at(q)].following) {
                            const std::uint32_t other = network_.edge[at(q)].head;
                            if (op_[other].device == dst) highest = std::max(highest, waiting_[other].rank);
                        }
                        waiting_[at(t)].rank = highest;
                        waiting_[at(t)].tie = requests++;
                    }
                    const Index c = d * devices_ + dst;
                    Queue& queue = queue_[at(devices_ + c)];
                    if (queue.empty()) opened_[put++] = c;
                    add<fifo>(queue, t);
                } else {
                    if (first == p) transfer_[p] = {time + transfer_seconds(edge, d, dst), sequence++, t};
                    arrive(w, {transfer_[first].time, transfer_[first].sequence(), t});
                }
            }
        } else if (n < nodes) {  // the last input of an op arrives
            const auto w = static_cast<Index>(network_.edge[at(n - ops_)].head);
            d = op_[at(w)].device;
            add<fifo>(queue_[at(d)], w);
            if (!events_.empty() && events_.first().time == time && events_.first().sequence() == now.sequence()) {
                continue;  // the same transfer serves another op, or its channel takes its next first
            }
        } else if (n < channels) {  // a device wakes up
            d = n - nodes;
            queue_[at(d)].busy = false;
            if (conflicts) d = -1;
        } else {  // a channel that something waits for is idle
            d = (n - channels) % devices_;
            opened_[0] = n - channels;
            queue_[at(devices_ + opened_[0])].busy = false;
            put = 1;
        }
        for (std::size_t i = 0; contended && i < put; ++i) {
            const Index c = opened_[i];
            Queue& queue = queue_[at(devices_ + c)];
            if (now < channel_[at(c)]) {  // busy
                if (!queue.busy) events_.push(channel_[at(c)]);
                queue.busy = true;
                continue;
            }
            Index p = remove<fifo>(queue) - ops_;
            const Index src = c / devices_, dst = c % devices_;
            double seconds;
            if (fifo || noise > 0) {
                seconds = transfer_seconds(network_.edge[at(p)], src, dst);
            } else {
                seconds = moving_[at(p)];
            }
            channel_[at(c)] = {time + seconds, sequence, channels + c};
            for (; p >= 0; p = network_.edge[at(p)].following) {
                const auto w = static_cast<Index>(network_.edge[at(p)].head);
                if (op_[at(w)].device == dst) arrive(w, {time + seconds, sequence, ops_ + p});
            }
            if (!queue.empty()) {
                queue.busy = true;
                events_.push(channel_[at(c)]);
            }
            ++sequence;
        }
        const auto start = [&](Index device) {
            const Index v = remove<fifo>(queue_[at(device)]);
            if (!taken) turn = sequence++;
            taken = false;
            queue_[at(device)].busy = true;
            OpState& op = op_[at(v)];
            double seconds = duration[at(v)];
            if (noise > 0) seconds *= factor(noise, stream, at(v));
            op.start = time;
            op.finish = time + seconds;
            events_.push({op.finish, turn, v});
        };
        if (!conflicts) {
            if (!queue_[at(d)].busy && !queue_[at(d)].empty()) start(d);
            continue;
        }
        if (n < ops_) {
            for (Index c = 0; c < devices_; ++c) queue_[at(c)].busy -= network_.conflict(at(d), at(c));
        }
        while (true) {
            const Index first = first_among(queue_, network_.conflict, devices_, d, precedes);
            if (first < 0) break;
            start(first);
            for (Index c = 0; c < devices_; ++c) queue_[at(c)].busy += network_.conflict(at(first), at(c));
        }
    }
    return done == ops_ ? now.time : std::numeric_limits<double>::quiet_NaN();
}

double makespan_of(Span<const Op> op, Span<const Edge> edge, Grid<const Link> link, Span<const Index> place,
                   Grid<const Flag> conflict, Span<const double> duration, Span<double> start) {
    OneRequest request;
    request.take({op, edge, link, conflict});
    const double seconds = request.run(place, duration, {}, LinkModel::channel, Discipline::priority);
    for (std::size_t v = 0; v < place.size(); ++v) start[v] = request.start(static_cast<Index>(v));
    return seconds;
}

}  // namespace placeit
