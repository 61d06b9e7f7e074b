// The requests of a server that need no Python from their submission to their end.
//
// They wait in one queue. Whichever replica has the fewest in flight takes the first one. The thread that ends a request copies
// its outputs, has the next one begin in the same slot, and wakes the thread that waits for the first. What is left for Python
// is to see to requests that are over: to count them, and to resolve their futures.
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
    ended,      // well: the outputs are there
    expired,    // its deadline was over before it could begin
    cancelled,  // while it waited
};

/// A request. Its memory stays where it is until it is acknowledged. What is not atomic is under the mutex of the queue until
/// the request is over, and does not change after that.
struct Submission : std::enable_shared_from_this<Submission> {
    Submission(Tensors memory, double until) : tensors(std::move(memory)), deadline(until) {}

    bool over() const { return state >= State::ended; }

    const Tensors tensors;
    double deadline;                          // in seconds of the clock, until when it has to begin
    std::atomic<const void*> queue{nullptr};  // that it was put into
    std::atomic<State> state{State::outside};
    std::atomic<bool> acknowledged{false};  // whether Python has seen to it
    bool watched = false;                   // whether a replica's thread is to see to it at once
    Index replica = -1, slot = -1;
    std::int64_t number = 0;                                 // of those that began
    bool alone = false;                                      // whether no other one was in flight meanwhile
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
    /// `every`: of a candidate, which takes one request in `every`, one at a time; 0 of any other replica.
    Index add(Executor& executor, std::vector<Tensors> slots, std::shared_ptr<Bell> bell, std::int64_t every);

    /// Have the executor of a replica begin a run, and the replica take requests.
    void open(Index replica);
    /// Have it take no more, and wait for threads that are about to begin or end a request there.
    void close(Index replica);
    /// Have it take no more, and go on with what is in flight; returns whether nothing is.
    bool retire(Index replica);
    /// Have a candidate take as many as any other replica.
    void adopt(Index replica);
    /// Have what is in flight on a closed replica, whose run is over, wait again, before all others and without a deadline.
    void again(Index replica);

    /// Have a request wait, and begin as soon as it can. Returns whether no other one has an earlier deadline.
    bool put(const One& request);
    /// Take a request out that waits; whether it is cancelled now, or was before.
    bool cancel(const One& request);
    /// Have a replica's thread, which the bell calls, see to a request as soon as it is over.
    void watch(Submission& request);
    /// Wait for the end of a request, until some time at most; returns whether it is over. The first thing that this thread
    /// does is to run a segment of it that a lane is late for.
    bool wait(Submission& request, double until, const Look& look);

    /// Those that are over and not acknowledged; `due`: only those that a replica's thread is to see to, as they are watched or
    /// have been over for half a second. These are not returned again for half a second.
    std::vector<One> over(bool due);
    /// Python has seen to a request.
    void acknowledge(const One& request);

    /// Have requests leave whose deadline is over; returns the next deadline of those that wait.
    double expire();
    /// Take out all that wait.
    std::vector<One> withdraw();
    /// Those in flight.
    std::vector<One> flying() const;
    /// The one in a slot, which stays there; null if there is none.
    One in_slot(Index replica, Index slot) const;
    /// Take the one in a slot out, as it has failed or was given up. Nothing is written to its memory after that.
    void drop(Index replica, Index slot);

    /// A slot for a request that Python begins; -1 if none is free.
    Index reserve(Index replica);
    void release(Index replica, Index slot);

    std::size_t waiting() const { return waiting_count_; }
    std::int64_t in_flight(Index replica) const;

    /// Count a request that Python has begin, and return its number.
    std::int64_t enter();
    void exit();
    std::int64_t begun() const { return begun_; }

    /// Have the bells ring for all that end.
    void tell_all() { tell_all_ = true; }

    /// For threads that wait until less waits.
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
        int users = 0;            // threads that are about to begin or end something there
        std::int64_t in_flight() const { return static_cast<std::int64_t>(slots.size() - free.size()); }
    };

    /// A replica by its number. Throws std::out_of_range if there is none.
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
    std::map<std::pair<double, const Submission*>, One> deadlines_;  // of those that wait
    std::deque<One> over_;
    std::int64_t others_ = 0;   // in flight that Python has begun
    std::int64_t flights_ = 0;  // in flight that it has not
    std::int64_t since_ = 0;    // how many have begun since a candidate took one
    std::atomic<std::int64_t> begun_{0};
    std::atomic<std::size_t> waiting_count_{0};
    std::atomic<bool> tell_all_{false};
};

}  // namespace placeit
