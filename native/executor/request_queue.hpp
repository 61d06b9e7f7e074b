// The requests of a server that need no Python from their submission to their end.
//
// They wait in one queue. The replica with the fewest requests in flight takes the first one. The thread that ends a request
// copies its outputs, has the next one begin in the same slot, and wakes the thread that waits for the request that has ended.
// Python only has to handle requests that are over: to count them, and to resolve their futures.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "executor/bell.hpp"
#include "executor/event.hpp"
#include "executor/executor.hpp"

namespace placeit {

/// Memory of a tensor.
struct Memory {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
};

/// Memory of the inputs and the outputs of the model: of a request, or of a slot of a replica.
struct Tensors {
    std::vector<Memory> inputs, outputs;
};

enum class State : std::int32_t {
    outside,    // not submitted, or taken out of the queue
    waiting,    // for a replica
    flying,     // begun, and not over
    ended,      // successfully: the outputs are there
    expired,    // its deadline was over before it could begin
    cancelled,  // while it waited
};

/// A request. Its memory stays where it is until it is acknowledged. Members that are not atomic are under the mutex of the
/// queue until the request is over, and do not change after that.
struct Submission : std::enable_shared_from_this<Submission> {
    Submission(Tensors memory, double until, std::int64_t level = 0)
        : tensors(std::move(memory)), priority(level), deadline(until) {}

    bool over() const { return state >= State::ended; }

    const Tensors tensors;
    const std::int64_t priority;              // requests of a lower number begin first
    double deadline;                          // in seconds of the clock: when it has to begin at the latest
    std::atomic<const void*> queue{nullptr};  // the queue that it was put into
    std::atomic<State> state{State::outside};
    std::atomic<bool> acknowledged{false};  // whether Python has handled its end
    bool watched = false;                   // whether a replica's thread is to handle its end at once
    Index replica = -1, slot = -1;
    std::int64_t number = 0;                                 // number among the requests that began
    bool alone = false;                                      // whether no other request was in flight at the same time
    double begun = 0.0, ended = 0.0, over_since = 0.0;       // in seconds of the clock
    std::vector<Ran> ran;                                    // by node of a slot
    Event done;                                              // for threads that wait for it
    std::list<std::shared_ptr<Submission>>::iterator place;  // while it waits
};

/// Any thread may call any method, but `add`, `open` and `close` of one replica, which are for one thread at a time.
class RequestQueue : public std::enable_shared_from_this<RequestQueue> {
public:
    using Look = Executor::Look;
    using One = std::shared_ptr<Submission>;
    using Lock = std::unique_lock<std::mutex>;

    /// Add a replica, and return its number. `slots`: the memory of each; the executor outlives the use of the replica.
    /// `every`: for a candidate, which takes one request in `every`, one at a time; 0 for any other replica.
    Index add(Executor& executor, std::vector<Tensors> slots, std::shared_ptr<Bell> bell, std::int64_t every);

    /// Have the executor of a replica begin a run, and the replica take requests.
    void open(Index replica);
    /// Have a replica take no more requests, and wait for threads that are about to begin or end a request there.
    void close(Index replica);
    /// Have a replica take no more requests, and go on with requests in flight; returns whether none is in flight.
    bool retire(Index replica);
    /// Have a candidate take as many requests as any other replica.
    void adopt(Index replica);
    /// Have the requests in flight on a closed replica, whose run is over, wait again, before all others, without a deadline.
    void again(Index replica);

    /// Have a request wait, and begin as soon as it can. Returns whether no other one has an earlier deadline.
    bool put(const One& request);
    /// Take a waiting request out; returns whether it is cancelled now, or was before.
    bool cancel(const One& request);
    /// Have a replica's thread, which the bell calls, handle the end of a request as soon as it is over.
    void watch(Submission& request);
    /// Wait for the end of a request, until some time at most; returns whether it is over. First, this thread runs a segment of
    /// the request that a lane is late for.
    bool wait(Submission& request, double until, const Look& look);

    /// Returns the requests that are over and not acknowledged; `due`: only requests that a replica's thread is to handle, as
    /// they are watched or have been over for half a second. These are not returned again for half a second.
    std::vector<One> over(bool due);
    /// Record that Python has handled the end of a request.
    void acknowledge(const One& request);

    /// Take waiting requests out whose deadline is over; returns the next deadline of the others.
    double expire();
    /// Take out all waiting requests, and return them.
    std::vector<One> withdraw();
    /// Returns the requests in flight.
    std::vector<One> flying() const;
    /// Returns the request in a slot, which stays there; null if the slot is empty.
    One in_slot(Index replica, Index slot) const;
    /// Take the request in a slot out, as it has failed or was given up. Nothing is written to its memory after that.
    void drop(Index replica, Index slot);

    /// Take a slot for a request that Python begins; -1 if no slot is free.
    Index reserve(Index replica);
    void release(Index replica, Index slot);

    std::size_t waiting() const { return waiting_count_; }
    std::int64_t in_flight(Index replica) const;

    /// Count a request that Python begins, and return its number.
    std::int64_t enter();
    void exit();
    std::int64_t begun() const { return begun_; }

    /// Have the bells ring for every request that ends.
    void tell_all() { tell_all_ = true; }

    /// For threads that wait until fewer requests wait.
    Event room;

private:
    struct Replica {
        Executor* executor = nullptr;
        std::vector<Tensors> slots;
        std::shared_ptr<Bell> bell;
        std::int64_t every = 0;
        bool open = false;
        std::uint64_t run = 0;    // how often it was opened
        std::vector<One> flying;  // by slot
        std::vector<Index> free;  // slots
        int users = 0;            // threads that are about to begin or end a request there
        std::int64_t in_flight() const { return static_cast<std::int64_t>(slots.size() - free.size()); }
    };

    /// Returns a replica by its number. Throws std::out_of_range if it does not exist.
    Replica& of(Index replica) const {
        if (replica < 0 || at(replica) >= replicas_.size()) throw std::out_of_range("There is no such replica.");
        return *replicas_[at(replica)];
    }
    /// Whether a replica has a slot for requests of the queue.
    bool has(Index replica, Index slot) const { return slot >= 0 && at(slot) < of(replica).slots.size(); }
    void check_mine(const Submission& request) const;
    Index next() const;
    static void await_users(Lock& lock, const Replica& replica);
    void dispatch(Lock& lock);
    void ended(Index replica, std::uint64_t run, Index slot);
    void take_out(const One& request, State state);
    void put_over(const One& request, State state);
    void ring_for(const Submission& request);

    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Replica>> replicas_;
    std::list<One> waiting_;
    std::map<std::pair<double, const Submission*>, One> deadlines_;  // of waiting requests
    std::deque<One> over_;
    std::int64_t others_ = 0;   // requests in flight that Python has begun
    std::int64_t flights_ = 0;  // other requests in flight
    std::int64_t since_ = 0;    // how many requests have begun since a candidate took one
    std::atomic<std::int64_t> begun_{0};
    std::atomic<std::size_t> waiting_count_{0};
    std::atomic<bool> tell_all_{false};
};

}  // namespace placeit
