#include "simulator/one_request.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "simulator/random.hpp"

namespace placeit {

namespace {

/// Writes the seconds of the transfer of each edge if its ends are on different devices, [E].
void time_transfers(const Network& network, Span<const Index> place, Span<double> moving) {
    for (std::size_t p = 0; p < moving.size(); ++p) {
        const Edge& edge = network.edge[p];
        moving[p] = network.link(at(place[edge.tail]), at(place[edge.head])).seconds(edge.size);
    }
}

}  // namespace

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
    entries_.clear();
    op_.resize(at(ops_));
    waiting_.resize(at(ops_));
    device_.resize(at(devices_));
    channel_.clear();
    transfer_.resize(at(edges_));
    moving_.resize(at(edges_));
    rank_.resize(at(ops_));
    opened_.resize(at(devices_));
    Index shared = 0;
    for (const Edge& edge : network.edge) shared = std::max(shared, edge.shared + 1);
    sent_ = Matrix<Sent>(at(shared), at(devices_));
    events_.resize(at(ops_) + std::min(at(devices_) * at(devices_), at(edges_)) + 2);
    for (Index i = 0; i < ops_; ++i) {
        if (network.op[at(i)].indegree == 0) entries_.push_back(i);
        const std::uint32_t v = network.op[at(i)].order;
        waiting_[v] = {0, i, static_cast<Index>(v)};
    }
}

template <bool fifo, bool contended, bool noisy>
class OneRequest::Loop {
public:
    Loop(OneRequest& workspace, Span<const double> duration, double noise, std::uint64_t stream)
        : ops_(workspace.ops_),
          devices_(workspace.devices_),
          noise_(noise),
          stream_(stream),
          duration_(duration.data()),
          edge_(workspace.network_.edge.data()),
          op_(workspace.op_.data()),
          waiting_(workspace.waiting_.data()),
          device_(workspace.device_.data()),
          transfer_(workspace.transfer_.data()),
          moving_(workspace.moving_.data()),
          w_(workspace),
          events_(workspace.events_.data()),
          conflicts_(!workspace.network_.conflict.empty()) {}

    __attribute__((flatten)) double run() {  // all in one function: the loop's state stays in registers
        for (const Index v : w_.entries_) {  // all devices wake up at once
            device_[op_[v].device].add(fifo, entry(v));
        }
        if (conflicts_) {
            start_among(-1);
        } else {
            for (const Index v : w_.entries_) {
                if (!device_[op_[v].device].busy) start_next(op_[v].device);
            }
        }
        while (!events_.empty()) {
            now_ = events_.pop();
            const Index what = now_.what();
            if (what < ops_) {
                op_finishes(what);
            } else if (what < ops_ + w_.edges_) {
                const Index v = static_cast<Index>(edge_[what - ops_].head), d = op_[v].device;
                device_[d].add(fifo, entry(v));
                device_may_start(d);
            } else {
                const Index c = what - ops_ - w_.edges_;
                w_.channel_[at(c)].expected = false;
                move_next(c);
                device_may_start(c % devices_);
            }
        }
        return done_ == ops_ ? now_.time : std::numeric_limits<double>::quiet_NaN();
    }

private:
    void op_finishes(Index v) {
        const Index d = op_[v].device;
        Line& device = device_[d];
        ++done_;
        // an op that was ready before goes, among simultaneous events, before the transfers that this one requests
        const bool taken = fifo && !device.empty();
        if (taken) start(device.take(fifo), d);
        const Op* const op = &w_.network_.op[at(v)];
        std::size_t put = 0;  // how many channels may take their next transfer once all edges have fired
        for (std::uint32_t p = op[0].first; p < op[1].first; ++p) {
            const Edge& edge = edge_[p];
            const Index dst = op_[edge.head].device;
            const Index what = ops_ + static_cast<Index>(p);
            if (dst == d) {
                OpState& op_here = op_[edge.head];
                if (--op_here.pending > 0) continue;
                if (now_ < op_here.ready) {
                    events_.push(op_here.ready);
                } else {
                    device.add(fifo, entry(static_cast<Index>(edge.head)));
                }
                continue;
            }
            std::uint32_t first = p;  // position of the first edge of this tensor towards this device
            if (edge.shared >= 0) {
                Sent& sent = w_.sent_(at(edge.shared), at(dst));
                if (sent.op == v) {
                    first = static_cast<std::uint32_t>(sent.position);
                } else {
                    sent = {v, static_cast<Index>(p)};
                }
            }
            if (!contended) {
                if (first == p) {
                    const Event arrival{now_.time + seconds(p, d, dst), sequence_++, what};
                    if (edge.shared >= 0) transfer_[p] = arrival;
                    arrive(edge.head, arrival);
                } else {
                    arrive(edge.head, {transfer_[first].time, transfer_[first].sequence(), what});
                }
            } else if (first == p) {
                const Index c = d * devices_ + dst;
                Line& line = channel(c).line;
                if (line.empty()) w_.opened_[put++] = c;
                line.add(fifo, {fifo ? 0 : urgency_of_transfer(p, dst), requests_++, what});
            }
        }
        for (std::size_t i = 0; contended && i < put; ++i) move_next(w_.opened_[i]);
        if (taken) return;
        device.busy = 0;
        if (!conflicts_) {
            start_next(d);
            return;
        }
        for (Index c = 0; c < devices_; ++c) device_[c].busy -= conflict(d, c);
        start_among(d);
    }

    /// An op is ready, or a transfer that makes some ready has ended, for a device that may be idle.
    void device_may_start(Index d) {
        if (device_[d].busy) return;
        // the same transfer serves another op, or its channel takes its next first
        if (!events_.empty() && events_.first().is_part_of(now_)) return;
        if (conflicts_) {
            start_among(d);
        } else {
            start_next(d);
        }
    }

    /// A channel, reset if nothing has used it in this run; with many devices, most are never used.
    Channel& channel(Index c) {
        Channel& found = w_.channel_[at(c)];
        if (found.run != w_.run_) {
            found.line.clear();
            found.idle = {};
            found.expected = false;
            found.run = w_.run_;
        }
        return found;
    }

    /// Have a channel take the transfer that comes first, or add the event at which it is idle.
    void move_next(Index c) {
        Channel& channel = w_.channel_[at(c)];
        if (!(now_ < channel.idle)) {
            const Index dst = c % devices_;
            Index p = channel.line.take(fifo) - ops_;
            const double arrival = now_.time + seconds(static_cast<std::uint32_t>(p), c / devices_, dst);
            channel.idle = {arrival, sequence_, ops_ + w_.edges_ + c};
            for (; p >= 0; p = edge_[p].following) {
                const std::uint32_t head = edge_[p].head;
                if (op_[head].device == dst) arrive(head, {arrival, sequence_, ops_ + p});
            }
            ++sequence_;
            if (channel.line.empty()) return;
        }
        if (!channel.expected) events_.push(channel.idle);
        channel.expected = true;
    }

    /// Tell an op when, and as which event, one more of its inputs arrives.
    void arrive(std::uint32_t v, const Event& arrival) {
        OpState& op = op_[v];
        if (op.ready < arrival) op.ready = arrival;
        if (--op.pending == 0) events_.push(op.ready);
    }

    /// Have a device start the op that comes first, if one is ready.
    void start_next(Index d) {
        if (!device_[d].empty()) start(device_[d].take(fifo), d);
    }

    /// Have a device and those that conflict with it (all, for -1) start what they may, the most urgent op first.
    void start_among(Index d) {
        const auto precedes = [](const Line& a, const Line& b) { return a.first() < b.first(); };
        while (true) {
            const Index first = first_among(device_, w_.network_.conflict, devices_, d, precedes);
            if (first < 0) return;
            start(device_[first].take(fifo), first);
            for (Index c = 0; c < devices_; ++c) device_[c].busy += conflict(first, c);
        }
    }

    void start(Index v, Index d) {
        double taken = duration_[v];
        if (noisy) taken *= factor(noise_, stream_, at(v));
        OpState& op = op_[v];
        device_[d].busy = 1;
        op.start = now_.time;
        op.finish = now_.time + taken;
        events_.push({op.finish, sequence_++, v});
    }

    /// Seconds of the transfer at a position; they are computed before if ops have b-levels.
    double seconds(std::uint32_t p, Index src, Index dst) const {
        const double taken = fifo ? w_.network_.link(at(src), at(dst)).seconds(edge_[p].size) : moving_[p];
        if (!noisy) return taken;
        return taken * factor(noise_, stream_, at(ops_) + std::uint64_t{edge_[p].tensor} * at(devices_) + at(dst));
    }

    /// A transfer is as urgent as the most urgent of the ops that it serves; of equal ones, the one requested first goes first.
    std::uint64_t urgency_of_transfer(std::uint32_t p, Index dst) const {
        std::uint64_t highest = waiting_[edge_[p].head].urgency;
        for (Index q = edge_[p].following; q >= 0; q = edge_[q].following) {
            if (op_[edge_[q].head].device == dst) highest = std::min(highest, waiting_[edge_[q].head].urgency);
        }
        return highest;
    }

    Waiting entry(Index v) const { return fifo ? Waiting{0, 0, v} : waiting_[v]; }
    bool conflict(Index a, Index b) const { return w_.network_.conflict(at(a), at(b)) != 0; }

    const Index ops_, devices_;
    const double noise_;
    const std::uint64_t stream_;
    const double* const duration_;
    const Edge* const edge_;
    OpState* const op_;
    const Waiting* const waiting_;
    Line* const device_;
    Event* const transfer_;
    const double* const moving_;
    OneRequest& w_;
    Events events_;
    const bool conflicts_;
    Event now_;
    std::uint64_t sequence_ = 1;
    std::int32_t requests_ = 0;
    Index done_ = 0;
};

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
        if (priority.empty()) {
            b_level(network_, place, duration, moving_, rank_);
        } else {
            time_transfers(network_, place, moving_);
        }
        const Span<const double> rank = priority.empty() ? Span<const double>(rank_) : priority;
        for (Index v = 0; v < ops_; ++v) waiting_[at(v)].urgency = Waiting::urgency_of(rank[at(v)]);
    }
    for (Line& line : device_) line.clear();
    if (contended && channel_.empty()) channel_.resize(at(devices_) * at(devices_));
    if (++run_ == 0) {  // the numbers have all been used
        for (Channel& channel : channel_) channel.run = 0;
        run_ = 1;
    }
    std::fill(sent_.values().begin(), sent_.values().end(), Sent{-1, -1});
    const auto go = [&](auto is_fifo, auto is_contended, auto is_noisy) {
        return Loop<is_fifo, is_contended, is_noisy>(*this, duration, noise, stream).run();
    };
    const auto choose = [&](auto is_fifo, auto is_contended) {
        return noise > 0 ? go(is_fifo, is_contended, std::true_type()) : go(is_fifo, is_contended, std::false_type());
    };
    if (fifo) return contended ? choose(std::true_type(), std::true_type()) : choose(std::true_type(), std::false_type());
    return contended ? choose(std::false_type(), std::true_type()) : choose(std::false_type(), std::false_type());
}

}  // namespace placeit
