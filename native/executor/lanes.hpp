// Lanes run a plan: threads of devices and of emulated links, over the rules that the simulator follows.
//
// A lane runs one thing at a time: a segment through its entry, or a transfer, which takes until an absolute deadline. All
// lanes of a run share one state under one mutex. Whoever reports an end carries out what the rules answer: it queues what
// starts on its lane, and wakes other lanes before it goes on itself. Nothing is called with the mutex taken, Python least of
// all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "executor/bell.hpp"
#include "rules/machine.hpp"
#include "rules/span.hpp"

namespace placeit {

/// A C function that runs a segment on the calling thread and returns 0, or another number if that failed.
struct Entry {
    int (*function)(void*) = nullptr;
    void* argument = nullptr;
};

/// How a node is carried out: by an entry, or, on the lane of a link, by waiting.
struct Step {
    Index lane = -1;  // -1: it ends as soon as it starts
    Entry entry;
    double seconds = 0.0;  // of a transfer, from when its link is free
    Index next = -1;       // node that is queued behind it
};

/// What ran, and when, in seconds of the clock.
struct Ran {
    Index node;
    double start, finish;
};

// What happens in a run, for whoever asked for it.
struct Ended {  // a request has ended, well unless an entry of it has failed
    Index slot;
    double at;
};
struct Failed {  // the first entry that failed, of all or, in a run with a bell, of a request
    Index node;
    Index lane;
    int status;
    double at;
};
struct Cancelled {  // somebody has stopped the run
    double at;
};
struct Late {  // the deadline of the run was over before the run was
    double deadline;
    std::vector<Index> running;  // nodes that were on lanes then, or queued there
};
struct Broken {  // nobody knows any more what is to run
    std::string why;
};
using Event = std::variant<Ended, Failed, Cancelled, Late, Broken>;

/// The lanes of a plan, for one run after another. Any thread may call any method; `prepare` throws std::logic_error during a
/// run, and so does `set` for a slot that is in flight. Whoever calls `set`, `grow` or `admit` sees to it that no other thread
/// calls one of them, or asks for numbers of slots, at the same time.
class Lanes {
public:
    static constexpr double never = std::numeric_limits<double>::infinity();

    /// `slowdown`, [L]: the factor by which segments on a lane are prolonged.
    Lanes(std::shared_ptr<Machine> rules, Span<const double> slowdown);

    Index nodes() const { return static_cast<Index>(steps_.size()); }
    Index slots() const { return slots_; }
    Index lanes() const { return static_cast<Index>(lanes_.size()); }

    /// Say how a node is carried out, numbered as the rules do.
    void set(Index node, const Step& step);
    const Step& step(Index node) const { return steps_[at(node)]; }

    /// Make room for more slots, in the rules, too; nothing of the new ones is carried out by a lane before it is set.
    void grow(Index slots);

    /// Make ready for a run; from here on it can be stopped.
    ///
    /// `slots`: the requests that begin at once; `waiting`: how many follow them, each as soon as a slot is free; `bell`: of a
    /// run that requests are added to, rung when one has ended, or the run has been stopped; `deadline`: when the run is
    /// stopped.
    void prepare(Span<const Index> slots, std::int64_t waiting, std::shared_ptr<Bell> bell, double deadline);

    /// Work on a lane until the run is over. The last lane to come begins it.
    void work(Index lane);

    /// Begin one more request of a run with a bell, unless the run has been stopped. One that fails is dropped, and the others
    /// go on; without a bell, it ends the run.
    void admit(Index slot);

    /// Have a run with a bell be over when nothing of it is in flight.
    void admit_no_more();

    /// Have nothing more started. What runs goes on to its end, transfers of emulated links excepted; then lanes are free.
    void stop();

    bool begun() const;
    bool stopped() const;
    double begin() const;
    double end() const;

    /// What has happened since this was last asked.
    std::vector<Event> events();

    /// The nodes that are on lanes, or queued there.
    std::vector<Index> running() const;

    /// What ran in a slot since the run, or the request there, began, by start; what ended at once is left out.
    std::vector<Ran> ran(Index slot) const;

private:
    struct Lane {
        double slowdown = 1.0;
        double free = 0.0;            // until when a link is taken
        Index current = -1;           // node that runs
        Index first = -1, last = -1;  // queue
        std::condition_variable bell;
        std::atomic<bool> called{false};  // whether the bell is to be rung
    };
    using Lock = std::unique_lock<std::mutex>;

    bool over() const { return over_ || (stopped_ && !begun_); }
    void run_all(Lock& lock, Lane& lane);
    void run_next(Lock& lock, Lane& lane);
    template <class Condition>
    void wait(Lock& lock, Lane& lane, double until, Condition condition);
    void let_go(Lock& lock) noexcept;
    void check_idle(Index slot) const;
    void begin_request(Index slot);
    void finished(Index node);
    void carry_out(double time);
    void enqueue(Index node, double time);
    std::vector<Index> on_lanes() const;
    void check_deadline();
    void end_with(Event why, double time);
    void drop(Index slot, const Failed& why);
    void break_down(const char* why) noexcept;
    void one_less(double time);
    void call_all() noexcept;

    std::shared_ptr<Machine> rules_;
    Index slots_;
    std::vector<Step> steps_;  // of the nodes of all slots
    std::vector<Lane> lanes_;
    std::vector<Index> todo_;   // ring: what the rules have told
    std::vector<Flag> failed_;  // [R] whether an entry of the request in a slot has failed

    mutable std::mutex mutex_;
    std::vector<Index> first_;   // requests to begin when all lanes are there
    std::vector<Event> events_;  // room for all that can happen is reserved
    std::shared_ptr<Bell> bell_;
    bool ring_ = false, admitting_ = false, begun_ = false, stopped_ = true, over_ = false;
    std::size_t arrived_ = 0;
    std::int64_t left_ = 0, waiting_ = 0;  // requests in flight, and one more while others may be admitted; those that follow
    double begin_ = 0.0, end_ = 0.0, deadline_ = never;
};

}  // namespace placeit
