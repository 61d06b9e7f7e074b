// The rules of execution: what starts when, for any number of requests in flight over one placement.
//
// placeit/simulator/simulate.py states the rules. Here they are a state machine without a clock: it is told what has happened
// and says what to start now. The simulator drives it from a heap of events, and executors from reports of their devices.
//
// A *position* numbers an edge after a stable sort by producer, so that the out-edges of an op are adjacent and still in edge
// order. A request in flight has a *slot*. A *node* is, in slot r, an op (r * (V + E) + v) or a transfer (r * (V + E) + V + p,
// where p is the position of the first edge of its tensor towards its destination).
#pragma once

#include <cstdint>
#include <vector>

#include "rules/queues.hpp"
#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

enum class Phase : std::int32_t { idle, running, sent, done };

struct Node {
    double start = 0.0;  // start and finish are for the caller, which keeps the time
    double finish = 0.0;
    double rank = 0.0;     // within a request the highest goes first
    std::int32_t tie = 0;  // of equal ranks, the lowest goes first
    Index left = -1;       // next in a FIFO queue, or left child in a heap
    Index right = -1;      // right child in a heap
    Index slot = 0;
    std::int32_t pending = 0;  // of an op: in-edges that have not fired
    Phase phase = Phase::idle;

    bool on_its_way() const { return phase == Phase::running || phase == Phase::sent; }
};

struct Request {
    std::int64_t age = -1;     // the request with the lowest age, which began first, goes first
    std::int32_t left = 0;     // ops that have not finished
    std::int32_t running = 0;  // nodes that were started and have not finished
    bool active = false;       // in flight
    bool aborted = false;
};

/// Returns how many requests may be in flight: the nodes of all are numbered in 31 bits.
Index max_requests(const Tables& tables);

/// Decides what starts when. A call tells what has happened; told() then says what to start. If it cannot have happened, the
/// call returns false and changes nothing. Not thread-safe; slots and nodes have to exist.
class Machine {
public:
    /// `tables` must outlive the machine; `place`: [V], device numbers within range (copied).
    Machine(const Tables& tables, Span<const Index> place, LinkModel links, Discipline discipline, Index slots);

    /// Give every op its priority, [V], the higher goes first; ties go by the topological order. Not for fifo.
    void rank(Span<const double> priority);

    /// Forget all requests, and take another placement.
    void reset(Span<const Index> place);

    /// Make room for more requests in flight.
    void grow(Index slots);

    /// Have a device run any number of ops at once.
    void share(Index device) { shared_[at(device)] = true; }

    /// Start a request in a slot; false if one is in flight there, or an op is on a lost device.
    bool begin(Index slot);
    /// An op has finished; false if it was not running.
    bool op_finished(Index n);
    /// The channel of a transfer can take its next one, though the tensor has not arrived; false if it was not to be sent.
    bool transfer_sent(Index n);
    /// A tensor has arrived; false if it was not on its way.
    bool transfer_finished(Index n);
    /// Drop all nodes of a request that have not started. Nodes that have started keep their device or channel until they are
    /// reported as finished; then the request has ended. Nothing happens if it is not in flight.
    void abort(Index slot);
    /// A device is lost for good. Requests are aborted that have an op left there, or wait for a tensor from there. Nodes that
    /// ran there, or were on their way from or to it, have ended and are not to be reported.
    void device_lost(Index device);

    /// What to do after the last call, in this order: nodes to start, and -1 - r for a slot whose request has ended.
    Span<const Index> told() const { return told_; }
    void tell_nothing() { told_.clear(); }

    Node& node(Index n) { return node_[at(n)]; }
    const Node& node(Index n) const { return node_[at(n)]; }
    const Request& request(Index slot) const { return request_[at(slot)]; }
    Index slots() const { return static_cast<Index>(request_.size()); }
    Index nodes() const { return ops_ + edges_; }  // of one request
    bool is_lost(Index device) const { return lost_[at(device)] != 0; }
    const Tables& tables() const { return *tables_; }
    Span<const Index> place() const { return place_; }
    LinkModel links() const { return links_; }
    Discipline discipline() const { return discipline_; }

private:
    bool fifo() const { return discipline_ == Discipline::fifo; }
    bool planned() const { return discipline_ == Discipline::planned; }
    bool conflicts() const { return !tables_->conflict.empty(); }
    bool conflict(Index a, Index b) const { return tables_->conflict(at(a), at(b)) != 0; }
    bool before(Index a, Index b) const;
    Queue& channel(Index src, Index dst) { return queue_[at(devices_ + src * devices_ + dst)]; }
    /// The ops of a slot that a device has still to take, in order: only with planned.
    Queue& plan(Index slot, Index device) { return queue_[at(devices_ + devices_ * devices_ + slot * devices_ + device)]; }
    void push(Queue& queue, Index n);
    Index pop(Queue& queue);

    void ready(Index n, Index device);
    void take_from_plan(Index slot, Index device);
    void start(Index n);
    void start_next(Index device);
    void start_among(Index device);
    void release_rivals(Index device);
    void move_next(Queue& queue);
    void end_if_over(Index slot);
    double rank_of_transfer(Index base, Index p) const;
    void drop(Index slot);

    const Tables* tables_;
    std::vector<Index> place_;
    LinkModel links_;
    Discipline discipline_;
    Index ops_, edges_, devices_;
    std::vector<Node> node_;        // [R * (V + E)]
    std::vector<Queue> queue_;      // [D + D * D] devices and channels; [R * D] more for planned
    std::vector<Request> request_;  // [R]
    Matrix<std::int64_t> sent_;     // [K, D] the count of finished ops when a shared tensor was last sent to a device
    std::vector<Flag> lost_;        // [D]
    std::vector<Flag> shared_;      // [D] whether a device runs several ops at once
    std::vector<Queue*> opened_;    // scratch: channels that an op puts to work
    std::vector<Index> told_;
    std::int64_t queued_ = 0;  // transfers requested, or with fifo ops that became ready where devices conflict
    std::int64_t stamp_ = 0;   // ops finished
    std::int64_t begun_ = 0;   // requests begun
};

}  // namespace placeit
