#include "simulator/simulation.hpp"

#include <algorithm>
#include <future>
#include <limits>
#include <stdexcept>
#include <string>

#include "simulator/random.hpp"

namespace placeit {

void add_cuts(const Tables& tables, Span<const Index> place, Span<double> duration) {
    for (std::size_t p = 0; p < tables.edge.size(); ++p) {
        const Edge& edge = tables.edge[p];
        const Index src = place[edge.tail], dst = place[edge.head];
        if (edge.enters && dst != src) duration[edge.head] += tables.cut(p, at(dst));
        if (!edge.opens) continue;
        auto q = static_cast<Index>(p);
        while (q >= 0 && place[tables.edge[at(q)].head] == src) q = tables.edge[at(q)].following;
        if (q >= 0) duration[edge.tail] += tables.cut(p, at(src));
    }
}

Simulation::Simulation(const Tables& tables, Index slots)
    : tables_(&tables),
      slots_(slots),
      duration_(at(tables.ops())),
      live_(at(tables.devices())),
      peak_(at(tables.devices())),
      number_(at(slots)) {
    one_.take(Network(tables));
}

/// Computes the seconds of ops and the memory of weights; false if the placement is infeasible.
bool Simulation::prepare(Span<const Index> place) {
    held_bytes(*tables_, place, live_);
    for (std::size_t v = 0; v < place.size(); ++v) {
        duration_[v] = tables_->compute(v, at(place[v]));
        if (duration_[v] == infinity) return false;
    }
    for (std::size_t d = 0; d < live_.size(); ++d) {
        peak_[d] = live_[d];
        if (live_[d] > tables_->memory[d]) return false;
    }
    if (!tables_->cut.empty()) add_cuts(*tables_, place, duration_);
    return true;
}

double Simulation::makespan(Span<const Index> place, Span<const double> priority, const Options& options) {
    const bool fifo = options.discipline == Discipline::fifo;
    by_rules_ = options.discipline == Discipline::planned || options.memory != Memory::weights_only ||
                (fifo && !tables_->conflict.empty());
    if (by_rules_) {
        const double arrival = 0.0;
        return requests(place, priority, options, {&arrival, 1});
    }
    if (!prepare(place)) return infinity;
    return one_.run(place, duration_, priority, options.links, options.discipline, options.noise, options.stream) +
           host_seconds(tables_->host, place);
}

double Simulation::requests(Span<const Index> place, Span<const double> priority, const Options& options,
                            Span<const double> arrivals, const Record& record) {
    by_rules_ = true;
    if (!machine_ || machine_->links() != options.links || machine_->discipline() != options.discipline) {
        machine_.emplace(*tables_, place, options.links, options.discipline, slots_);
        events_.resize(at(slots_) * at(machine_->nodes()) + 3);
        moving_.resize(at(tables_->edges()));
        rank_.resize(at(tables_->ops()));
    }
    if (!prepare(place)) return infinity;
    machine_->reset(place);
    for (Index n = 0; !record.log.empty() && n < slots_ * machine_->nodes(); ++n) {
        machine_->node(n).start = machine_->node(n).finish = std::numeric_limits<double>::quiet_NaN();
    }
    if (options.discipline != Discipline::fifo) {
        b_level(Network(*tables_), place, duration_, moving_, rank_);
        machine_->rank(priority.empty() ? Span<const double>(rank_) : priority);
    }
    if (options.memory != Memory::weights_only) {
        if (uses_.empty()) uses_ = Matrix<std::int32_t>(at(slots_) * at(tables_->tensors), live_.size());
        std::fill(uses_.values().begin(), uses_.values().end(), 0);
    }
    const double end = run(place, options, arrivals, record) + host_seconds(tables_->host, place);
    if (options.memory == Memory::limit) {
        for (std::size_t d = 0; d < peak_.size(); ++d) {
            if (peak_[d] > tables_->memory[d]) return infinity;
        }
    }
    return end;
}

/// Drives the rules from the heap of events.
double Simulation::run(Span<const Index> place, const Options& options, Span<const double> arrivals, const Record& record) {
    Machine& machine = *machine_;
    const Index ops = tables_->ops(), nodes = machine.nodes();
    const Index arrival = slots_ * nodes;  // events from here on are not nodes
    const bool tracked = options.memory != Memory::weights_only;
    const std::size_t total = arrivals.size();
    const std::uint64_t items = at(ops) + at(tables_->edges()) * at(tables_->devices());  // random factors of a request
    std::size_t arrived = 0, begun = 0, done = 0;
    std::uint64_t sequence = total;  // arrivals have the first numbers: they are before anything else at their time
    double time = 0.0;
    Events events(events_.data());

    // seconds of a node that starts at this time
    const auto start = [&](Index n) {
        Node& node = machine.node(n);
        const Index v = n - node.slot * nodes;
        double seconds;
        std::uint64_t item;
        if (v < ops) {
            seconds = duration_[at(v)];
            item = at(v);
            if (tracked) hold_outputs(place, node.slot, at(v));
        } else {
            const Edge& edge = tables_->edge[at(v - ops)];
            const Index src = place[edge.tail], dst = place[edge.head];
            seconds = tables_->link(at(src), at(dst)).seconds(edge.size);
            item = at(ops) + std::uint64_t{edge.tensor} * at(tables_->devices()) + at(dst);
            if (tracked) hold(dst, edge.size);
        }
        if (options.noise > 0) seconds *= factor(options.noise, options.stream, item + number_[at(node.slot)] * items);
        node.start = time;
        node.finish = time + seconds;
        events.push({node.finish, sequence++, n});
    };
    const auto end = [&](Index slot) {
        ++done;
        const std::size_t number = number_[at(slot)];
        if (!record.times.empty()) record.times(1, number) = time;
        if (record.log.empty()) return;
        for (Index m = 0; m < nodes; ++m) {
            record.log(2 * number, at(m)) = machine.node(slot * nodes + m).start;
            record.log(2 * number + 1, at(m)) = machine.node(slot * nodes + m).finish;
        }
    };
    // follows what the machine told; whenever a slot is free and a request waits, the request begins there
    const auto follow = [&](Index slot) {
        while (true) {
            for (const Index n : machine.told()) {
                if (n >= 0) {
                    start(n);
                } else {
                    end(slot = -1 - n);
                }
            }
            if (slot < 0 || begun == arrived) return;
            number_[at(slot)] = begun;
            if (!record.times.empty()) record.times(0, begun) = time;
            ++begun;
            machine.begin(slot);
            slot = -1;
        }
    };

    if (total > 0) events.push({arrivals[0], 0, arrival});
    while (!events.empty()) {
        const Event now = events.pop();
        const Index n = now.what();
        time = now.time;
        if (n == arrival) {
            if (++arrived < total) events.push({arrivals[arrived], arrived, arrival});
            Index slot = 0;
            while (slot < slots_ && machine.request(slot).active) ++slot;
            machine.tell_nothing();
            follow(slot < slots_ ? slot : -1);
            continue;
        }
        const Index slot = machine.node(n).slot, v = n - slot * nodes;
        if (v < ops) {
            for (std::size_t i = tables_->op[at(v)].in_first; tracked && i < tables_->op[at(v) + 1].in_first; ++i) {
                release(slot, tables_->in_edge[i], place[at(v)]);
            }
            machine.op_finished(n);
        } else {
            if (tracked) release(slot, at(v - ops), place[tables_->edge[at(v - ops)].tail]);
            machine.transfer_finished(n);
        }
        follow(-1);
    }
    return done == total ? time : std::numeric_limits<double>::quiet_NaN();
}

/// Counts memory that a tensor takes on a device.
void Simulation::hold(Index device, double bytes) {
    live_[at(device)] += bytes;
    peak_[at(device)] = std::max(peak_[at(device)], live_[at(device)]);
}

/// Counts the memory of an op's tensors when it starts, and their users.
void Simulation::hold_outputs(Span<const Index> place, Index slot, std::size_t op) {
    const Index d = place[op];
    for (std::size_t p = tables_->op[op].first; p < tables_->op[op + 1].first; ++p) {
        const Edge& edge = tables_->edge[p];
        const auto uses = uses_.row(at(slot) * at(tables_->tensors) + edge.tensor);
        const Index dst = place[edge.head];
        if (edge.opens) hold(d, edge.size);
        if (dst != d && uses[at(dst)] == 0) ++uses[at(d)];  // the transfer reads it too
        ++uses[at(dst)];
    }
}

/// Ends the use of a tensor on a device by one of its users.
void Simulation::release(Index slot, std::size_t position, Index device) {
    const Edge& edge = tables_->edge[position];
    if (--uses_(at(slot) * at(tables_->tensors) + edge.tensor, at(device)) == 0) live_[at(device)] -= edge.size;
}

void makespans(const Tables& tables, Grid<const Index> placements, Grid<const double> priority, const Options& options,
               std::uint64_t seed, Span<const double> arrivals, Index slots, Index threads, Span<double> seconds) {
    for (std::size_t b = 0; b < placements.rows(); ++b) {
        for (const Index d : placements.row(b)) {
            if (d < 0 || d >= tables.devices()) {
                throw std::out_of_range("'placements' holds device " + std::to_string(d) + " in row " + std::to_string(b) +
                                        ".");
            }
        }
    }
    const bool single = arrivals.size() == 1 && arrivals[0] == 0.0;
    const auto work = [&](std::size_t begin, std::size_t end) {
        Simulation simulation(tables, slots);
        Options of_row = options;
        for (std::size_t b = begin; b < end; ++b) {
            of_row.stream = stream_of(seed, b);
            const auto ranks = priority.rows() == 0 ? Span<const double>() : priority.row(priority.rows() > 1 ? b : 0);
            const auto place = placements.row(b);
            seconds[b] =
                single ? simulation.makespan(place, ranks, of_row) : simulation.requests(place, ranks, of_row, arrivals);
        }
    };
    const std::size_t size = placements.rows(), workers = std::min(at(threads), size);
    if (workers <= 1) return work(0, size);
    std::vector<std::future<void>> parts;
    parts.reserve(workers);
    for (std::size_t i = 0; i < workers; ++i) {
        parts.push_back(std::async(std::launch::async, work, size * i / workers, size * (i + 1) / workers));
    }
    for (auto& part : parts) part.get();
}

double record_requests(const Tables& tables, Span<const Index> place, Span<const double> priority, const Options& options,
                       std::uint64_t seed, Span<const double> arrivals, Index slots, const Record& record, Span<double> peak) {
    Simulation simulation(tables, slots);
    Options first = options;
    first.stream = stream_of(seed, 0);
    first.memory = Memory::track;
    const double end = simulation.requests(place, priority, first, arrivals, record);
    std::copy(simulation.peak().begin(), simulation.peak().end(), peak.begin());
    return end;
}

void b_level(const Tables& tables, Span<const Index> place, Span<double> rank) {
    std::vector<double> duration(place.size()), moving(tables.edge.size());
    for (std::size_t v = 0; v < place.size(); ++v) duration[v] = tables.compute(v, at(place[v]));
    if (!tables.cut.empty()) add_cuts(tables, place, duration);
    b_level(Network(tables), place, duration, moving, rank);
}

}  // namespace placeit
