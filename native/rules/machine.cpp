#include "rules/machine.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace placeit {

Index max_requests(const Tables& tables) {
    const Index each = tables.ops() + tables.edges() + tables.devices() + 1, devices = tables.devices();
    return (std::numeric_limits<Index>::max() - devices - devices * devices) / std::max(each, 1);
}

Machine::Machine(const Tables& tables, Span<const Index> place, LinkModel links, Discipline discipline, Index slots)
    : tables_(&tables),
      place_(place.begin(), place.end()),
      links_(links),
      discipline_(discipline),
      ops_(tables.ops()),
      edges_(tables.edges()),
      devices_(tables.devices()),
      sent_(at(tables.shared), at(devices_), -1),
      lost_(at(devices_)),
      shared_(at(devices_)) {
    opened_.reserve(at(devices_));
    grow(slots);
}

void Machine::grow(Index slots) {
    if (slots > max_requests(*tables_)) throw std::length_error("Too many requests in flight.");
    const auto resources = at(devices_ + devices_ * devices_);
    const Index before = this->slots();
    node_.resize(at(slots) * at(nodes()));
    queue_.resize(resources + (planned() ? at(slots) * at(devices_) : 0));
    request_.resize(at(slots));
    told_.reserve(at(nodes() + slots) + resources);
    for (Index slot = before; slot < slots; ++slot) {
        for (Index i = 0; i < nodes(); ++i) {
            Node& node = node_[at(slot * nodes() + i)];
            node.slot = slot;
            if (before > 0) {  // as in the slots that are there
                node.rank = node_[at(i)].rank;
                node.tie = node_[at(i)].tie;
            }
        }
    }
}

void Machine::rank(Span<const double> priority) {
    for (Index slot = 0; slot < slots(); ++slot) {
        const Index base = slot * nodes();
        for (Index i = 0; i < ops_; ++i) {
            node_[at(base + i)].rank = priority[at(i)];
            node_[at(base) + tables_->op[at(i)].order].tie = i;
        }
    }
}

void Machine::reset(Span<const Index> place) {
    std::copy(place.begin(), place.end(), place_.begin());
    std::fill(queue_.begin(), queue_.end(), Queue{});
    for (Request& request : request_) request.active = false;
}

bool Machine::before(Index a, Index b) const {
    const Node &x = node_[at(a)], &y = node_[at(b)];
    if (x.slot != y.slot) return request_[at(x.slot)].age < request_[at(y.slot)].age;
    return x.rank > y.rank || (x.rank == y.rank && x.tie < y.tie);
}

void Machine::push(Queue& queue, Index n) {
    enqueue(fifo(), node_.data(), queue, n, [this](Index a, Index b) { return before(a, b); });
}

Index Machine::pop(Queue& queue) {
    return dequeue(fifo(), node_.data(), queue, [this](Index a, Index b) { return before(a, b); });
}

bool Machine::begin(Index slot) {
    told_.clear();
    Request& request = request_[at(slot)];
    if (request.active) return false;
    if (std::any_of(place_.begin(), place_.end(), [this](Index d) { return is_lost(d); })) return false;
    request = {begun_++, ops_, 0, true, false};
    const Index base = slot * nodes();
    for (Index i = 0; i < nodes(); ++i) node_[at(base + i)].phase = Phase::idle;
    for (Index v = 0; v < ops_; ++v) node_[at(base + v)].pending = tables_->op[at(v)].indegree;
    if (planned()) {
        for (Index v = 0; v < ops_; ++v) push(plan(slot, place_[at(v)]), base + v);
    }
    for (const Index v : tables_->entries) ready(base + v, place_[at(v)]);
    for (const Index v : tables_->entries) start_next(conflicts() ? -1 : place_[at(v)]);
    if (ops_ == 0) end_if_over(slot);
    return true;
}

bool Machine::op_finished(Index n) {
    told_.clear();
    Node& done = node_[at(n)];
    if (done.phase != Phase::running || n - done.slot * nodes() >= ops_) return false;
    const Index slot = done.slot, base = slot * nodes(), v = n - base, d = place_[at(v)];
    Request& request = request_[at(slot)];
    done.phase = Phase::done;
    --request.left;
    --request.running;
    queue_[at(d)].busy = false;
    if (conflicts()) release_rivals(d);
    if (fifo()) start_next(d);
    if (!request.aborted) {
        ++stamp_;
        opened_.clear();
        for (std::size_t p = tables_->op[at(v)].first; p < tables_->op[at(v) + 1].first; ++p) {
            const Edge& edge = tables_->edge[p];
            const Index w = base + static_cast<Index>(edge.head), dst = place_[edge.head];
            if (dst == d) {
                if (--node_[at(w)].pending == 0) ready(w, d);
                continue;
            }
            if (edge.shared >= 0 && std::exchange(sent_(at(edge.shared), at(dst)), stamp_) == stamp_) continue;
            const Index t = base + ops_ + static_cast<Index>(p);
            if (links_ == LinkModel::contention_free) {
                start(t);
                continue;
            }
            if (!fifo()) {
                node_[at(t)].rank = rank_of_transfer(base, static_cast<Index>(p));
                node_[at(t)].tie = static_cast<std::int32_t>(queued_++);
            }
            Queue& queue = channel(d, dst);
            push(queue, t);
            if (!queue.busy) {
                queue.busy = true;
                opened_.push_back(&queue);
            }
        }
        // only now, so that the most urgent of several tensors goes first
        for (Queue* queue : opened_) move_next(*queue);
    }
    start_next(d);
    end_if_over(slot);
    return true;
}

bool Machine::transfer_sent(Index n) {
    told_.clear();
    Node& node = node_[at(n)];
    const Index p = n - node.slot * nodes() - ops_;
    if (node.phase != Phase::running || p < 0) return false;
    node.phase = Phase::sent;
    if (links_ == LinkModel::channel) {
        const Edge& edge = tables_->edge[at(p)];
        move_next(channel(place_[edge.tail], place_[edge.head]));
    }
    return true;
}

bool Machine::transfer_finished(Index n) {
    told_.clear();
    Node& node = node_[at(n)];
    const Index slot = node.slot, base = slot * nodes(), first = n - base - ops_;
    if (!node.on_its_way() || first < 0) return false;
    const Index src = place_[tables_->edge[at(first)].tail], dst = place_[tables_->edge[at(first)].head];
    const bool free = links_ == LinkModel::channel && node.phase == Phase::running;
    node.phase = Phase::done;
    --request_[at(slot)].running;
    if (free) move_next(channel(src, dst));
    if (!request_[at(slot)].aborted) {
        for (Index p = first; p >= 0; p = tables_->edge[at(p)].following) {
            const std::uint32_t head = tables_->edge[at(p)].head;
            if (place_[head] != dst) continue;
            const Index w = base + static_cast<Index>(head);
            node_[at(base + ops_ + p)].phase = Phase::done;
            if (--node_[at(w)].pending == 0) ready(w, dst);
        }
    }
    start_next(dst);
    end_if_over(slot);
    return true;
}

void Machine::abort(Index slot) {
    told_.clear();
    if (!request_[at(slot)].active || request_[at(slot)].aborted) return;
    drop(slot);
    end_if_over(slot);
}

void Machine::device_lost(Index device) {
    told_.clear();
    lost_[at(device)] = true;
    for (Index slot = 0; slot < slots(); ++slot) {
        Request& request = request_[at(slot)];
        if (!request.active) continue;
        Node* const op = &node_[at(slot * nodes())];
        Node* const transfer = op + ops_;
        const auto touches = [&](Index p) {
            return place_[tables_->edge[at(p)].tail] == device || place_[tables_->edge[at(p)].head] == device;
        };
        bool needed = false;
        for (Index v = 0; v < ops_; ++v) needed |= place_[at(v)] == device && op[v].phase != Phase::done;
        for (Index p = 0; p < edges_; ++p) {
            const Index src = place_[tables_->edge[at(p)].tail], dst = place_[tables_->edge[at(p)].head];
            needed |= src == device && dst != device && transfer[p].phase != Phase::done;
        }
        if (!needed) continue;
        if (!request.aborted) drop(slot);
        for (Index v = 0; v < ops_; ++v) {
            if (!op[v].on_its_way() || place_[at(v)] != device) continue;
            if (conflicts()) release_rivals(device);
            op[v].phase = Phase::done;
            --request.running;
        }
        for (Index p = 0; p < edges_; ++p) {
            if (!transfer[p].on_its_way() || !touches(p)) continue;
            transfer[p].phase = Phase::done;
            --request.running;
        }
        end_if_over(slot);
    }
    if (conflicts()) start_next(device);
}

/// Queue an op that has all its inputs; with planned, queue the op that the device has to take next, if it is this one.
void Machine::ready(Index n, Index device) {
    if (planned()) {
        take_from_plan(node_[at(n)].slot, device);
        return;
    }
    if (fifo() && conflicts()) node_[at(n)].rank = -static_cast<double>(queued_++);
    push(queue_[at(device)], n);
}

/// Queue the op that a device has to take next of a slot, if it has all its inputs and no conflicting op has to go before.
void Machine::take_from_plan(Index slot, Index device) {
    Queue& own = plan(slot, device);
    if (own.busy || own.empty() || node_[at(own.root)].pending != 0) return;
    for (Index c = 0; conflicts() && c < devices_; ++c) {
        if (!conflict(device, c)) continue;
        const Queue& rival = plan(slot, c);
        if (rival.busy || (!rival.empty() && before(rival.root, own.root))) return;
    }
    own.busy = true;
    push(queue_[at(device)], pop(own));
}

void Machine::start(Index n) {
    node_[at(n)].phase = Phase::running;
    ++request_[at(node_[at(n)].slot)].running;
    told_.push_back(n);
}

/// Have a device that may run something start the op that comes first, if one is ready; also those that conflict with it.
void Machine::start_next(Index device) {
    if (conflicts()) return start_among(device);
    Queue& queue = queue_[at(device)];
    if (queue.busy || queue.empty()) return;
    const Index n = pop(queue);
    queue.busy = !shared_[at(device)];
    start(n);
    if (planned()) {
        plan(node_[at(n)].slot, device).busy = false;
        take_from_plan(node_[at(n)].slot, device);
    }
}

/// Have a device and those that conflict with it (all, for -1) start the ops that they may, the most urgent op first: it may
/// keep other devices from starting theirs.
void Machine::start_among(Index device) {
    const auto precedes = [this](const Queue& a, const Queue& b) {
        return fifo() ? node_[at(a.root)].rank > node_[at(b.root)].rank : before(a.root, b.root);
    };
    while (true) {
        const Index first = first_among(queue_, tables_->conflict, devices_, device, precedes);
        if (first < 0) return;
        const Index n = pop(queue_[at(first)]), slot = node_[at(n)].slot;
        start(n);
        queue_[at(first)].busy = !shared_[at(first)];
        if (planned()) plan(slot, first).busy = false;
        for (Index c = 0; c < devices_; ++c) {
            queue_[at(c)].busy += conflict(first, c);
            if (planned() && (c == first || conflict(first, c))) take_from_plan(slot, c);
        }
    }
}

/// Record that a device has ended its op, and no longer blocks the devices that conflict with it.
void Machine::release_rivals(Index device) {
    for (Index c = 0; c < devices_; ++c) queue_[at(c)].busy -= conflict(device, c);
}

/// Have a channel that has nothing to do start the transfer that comes first, if one waits.
void Machine::move_next(Queue& queue) {
    queue.busy = !queue.empty();
    if (queue.busy) start(pop(queue));
}

/// Tell the end of a request if none of its nodes runs and none is left to run.
void Machine::end_if_over(Index slot) {
    Request& request = request_[at(slot)];
    if (request.running != 0 || (request.left != 0 && !request.aborted)) return;
    request.active = false;
    told_.push_back(-1 - slot);
}

/// The highest rank among the consumers that a transfer serves; `base` is the first node of its slot.
double Machine::rank_of_transfer(Index base, Index p) const {
    const auto rank = [&](Index q) { return node_[at(base) + tables_->edge[at(q)].head].rank; };
    const Index dst = place_[tables_->edge[at(p)].head];
    double highest = rank(p);
    for (Index q = tables_->edge[at(p)].following; q >= 0; q = tables_->edge[at(q)].following) {
        if (place_[tables_->edge[at(q)].head] == dst) highest = std::max(highest, rank(q));
    }
    return highest;
}

/// Abort a request: take nodes that have not started out of every queue.
void Machine::drop(Index slot) {
    request_[at(slot)].aborted = true;
    const std::size_t shared = at(devices_ + devices_ * devices_);
    std::vector<Index> kept;
    for (std::size_t q = 0; q < shared; ++q) {
        Queue& queue = queue_[q];
        kept.clear();
        while (!queue.empty()) {
            const Index n = pop(queue);
            if (node_[at(n)].slot != slot) kept.push_back(n);
        }
        for (const Index n : kept) push(queue, n);
    }
    for (Index d = 0; planned() && d < devices_; ++d) plan(slot, d) = Queue{};
}

}  // namespace placeit
