// Runs a plan on lanes, by the rules that the simulator follows.
//
// Lanes belong to devices and links, and live as long as these; any number of executors uses them. The thread that reports an
// end carries out what the rules answer: it queues what starts on the lanes, and wakes these before it goes on itself. The
// state of an executor is under one mutex. Nothing is called with the mutex taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "executor/bell.hpp"
#include "executor/event.hpp"
#include "executor/lane.hpp"
#include "rules/machine.hpp"
#include "rules/span.hpp"

namespace placeit {

/// A C function that runs a segment on the calling thread and returns 0, or another number if the run failed.
struct Entry {
    int (*function)(void*) = nullptr;
    void* argument = nullptr;
};

/// How a node is carried out: by an entry, by waiting, or by an entry that starts it, whose return value does not count and
/// after which another thread reports the end.
struct Step {
    Index lane = -1;  // -1: on the thread that decides to start it; without an entry, it then ends as soon as it starts
    Entry entry;
    double seconds = 0.0;       // of a transfer, from when its link is free
    bool asynchronous = false;  // whether the entry starts it only
    bool lendable = true;       // whether a caller may run the entry
};

/// A node that ran, and when, in seconds of the clock.
struct Ran {
    Index node;
    double start, finish;
};

// What happens in a run.
struct Ended {  // a request has ended, successfully unless a node of it has failed
    Index slot;
    double at;
};
struct Failed {  // the first node that failed in the run or, if it has a bell, in a request
    Index node;
    int status;
    double at;
};
struct Cancelled {  // the run was stopped
    double at;
};
struct Late {                    // the deadline was over before the run was
    std::vector<Index> running;  // nodes that had started, and had not ended
};
struct Broken {  // after an error, it is not known any more which nodes are to run
    std::string why;
};
using Incident = std::variant<Ended, Failed, Cancelled, Late, Broken>;

/// How waiting for a run has ended.
enum class Waited : std::int32_t {
    over,    // nothing of it runs any more
    late,    // the deadline is over, and something of it still runs
    inside,  // the calling thread waits for a run of this executor already, and is in the middle of a signal handler
    gone     // the thread of a lane has ended
};

/// A plan, its lanes, and one run after another. Any thread may call any method. No two threads may call
/// `set` or `grow` at the same time, or `admit` for one slot.
class Executor {
public:
    static constexpr double never = std::numeric_limits<double>::infinity();

    /// Called by a thread that waits, twice a second and after each signal; an exception stops the run.
    using Look = std::function<void()>;
    /// Called with the slot of a request that has ended.
    using Relay = std::function<void(Index)>;

    /// `slowdown`, [L]: the factor by which segments on a lane are prolonged.
    Executor(std::shared_ptr<Machine> rules, const std::vector<std::shared_ptr<Lane>>& lanes, Span<const double> slowdown);
    ~Executor() { leave(); }
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    Index nodes() const { return slots_ * rules_->nodes(); }
    Index slots() const { return slots_; }
    Index ops() const { return static_cast<Index>(samples_.size()); }
    Index lanes() const { return static_cast<Index>(uses_.size()); }

    /// Set how a node, numbered as in the rules, is carried out. Throws std::logic_error if its slot is in flight.
    void set(Index node, const Step& step);
    bool in_flight(Index slot) const;
    Step step(Index node) const;

    /// Make room for more slots, in the rules, too; nodes of the new slots are not carried out before they are set.
    void grow(Index slots);

    /// Have callers wait awake for some seconds before they sleep, while cores are idle.
    void spin(double seconds) { spin_ = seconds; }
    double spin() const { return spin_; }

    /// Set the priority of the nodes that start from now on, where they wait for a lane: the lowest number goes first.
    void prioritize(int priority) { priority_ = priority; }
    int priority() const { return priority_; }

    /// Run requests and wait for the end. First, stop a run that was given up, and wait for what is left of it.
    ///
    /// The calling thread runs segments itself from the begin on, as long as it finds them short and their lane free.
    /// `slots`: the requests that begin at once; `waiting`: how many follow them, each as soon as a slot is free; `deadline`:
    /// when to stop the run and to wait no longer.
    Waited run(Span<const Index> slots, std::int64_t waiting, double deadline, const Look& look);

    /// Begin a run that requests are added to. `bell` is rung when one has ended, or the run was stopped. Throws
    /// std::logic_error during a run. `relay` is called instead, on the thread that ends a request, for each that was admitted
    /// so and has ended well.
    void open(std::shared_ptr<Bell> bell, Relay relay = {});
    /// Begin one more request of such a run; false if the run was stopped. One that fails is dropped, and the others go on;
    /// without a bell, it ends the run.
    bool admit(Index slot, bool relayed = false);
    /// Run on this thread the node of a slot's request that a lane was given last, if the lane has not begun with it.
    void run_offered(Index slot);
    /// Have such a run be over when none of its requests is in flight.
    void admit_no_more();

    /// Begin as `run` does, and do not wait. `time`: now, by the clock that devices report by.
    void begin(Span<const Index> slots, std::int64_t waiting, double time);
    /// Wait for the run to be over, and stop it at the deadline.
    Waited wait(double deadline, const Look& look);
    /// Wait for the run to be over, until some time at most, and let it go on; returns whether it is over.
    bool watch(double until, const Look& look);
    /// Whether this thread waits for a run, and is in the middle of a signal handler.
    bool inside() const;

    /// Report the end of an asynchronous node; `serial`: the number of its start. Returns false if it does not run any more.
    bool report(Index node, std::uint64_t serial, double start, double finish, int status);
    std::uint64_t serial(Index node) const;

    /// Have nothing more started. Nodes that run go on to their end, except transfers of emulated links.
    void stop();

    bool stopped() const { return stopped_; }
    bool over() const { return over_; }
    double begun_at() const;
    double ended_at() const;

    /// Returns what has happened since the last call.
    std::vector<Incident> incidents();

    /// The nodes that have started, and have not ended.
    std::vector<Index> running() const;

    /// Nodes that ran in a slot since the run, or the request there, began, by start; nodes that ended at once are left out.
    std::vector<Ran> ran(Index slot) const;

    /// float64[V]: the median of the seconds that each op took in its last runs, a thousand at most; or in the very last one. 0
    /// if it has not run.
    void seconds(bool last, Span<double> found) const;
    /// Replace the last `runs` samples of each op by one of some seconds, [V]; ops of 0 s are left out.
    void blend(std::size_t runs, Span<const double> seconds);

    /// Have a function called once, when the run is over, on the thread that ends it; false if it is over already.
    bool when_over(std::function<void()> function);

    /// Wait for lanes that have just ended the last run, and still use it: to be called before it is destroyed.
    void leave() const;

private:
    struct Task final : Work {
        void run() override { owner->run_here(*this); }
        void drop() override { --owner->inside_; }
        Executor* owner = nullptr;
        Index node = -1;
        Step step;
        std::uint64_t serial = 0, run_number = 0;  // of its start, and of the run that it was started in
        double asked = 0.0;                        // when it was started
        double took = 0.0;                         // seconds, when it ran last
    };
    struct Place {
        std::shared_ptr<Lane> lane;
        double slowdown = 1.0;
        std::atomic<bool> asleep{false};  // whether it sleeps though it has something to do
    };
    struct Helper {            // a caller that runs segments itself
        Task* mine = nullptr;  // the task that it runs next
        Index held = -1;       // the lane that it has taken
    };
    using Lock = std::unique_lock<std::mutex>;
    using Last = std::function<void()>;  // called after the last use of the executor

    Task& task(Index node) const { return tasks_[at(node / rules_->nodes())][at(node % rules_->nodes())]; }
    void prepare(std::shared_ptr<Bell> bell, double time);
    void begin_all(Span<const Index> slots, std::int64_t waiting);
    void run_here(Task& task);
    Last carry_out(Task& task, Helper* helper);
    Waited wait(Lock& lock, double deadline, const Look& look);
    void help(Lock& lock, Helper& helper);
    bool lends(const Task& task) const;
    void pause(double until);
    [[nodiscard]] Last let_go(Lock& lock);
    void check_idle(Index slot) const;
    void begin_request(Index slot);
    void node_ended(Task& task, double start, double finish, int status);
    void finished(Index node);
    void told(double time);
    void start(Index node, double time);
    std::vector<Index> started() const;
    void end_with(Incident why, double time);
    void drop(Index slot, const Failed& why);
    void break_down(const char* why) noexcept;
    void one_less(double time);
    void end(double time) noexcept;

    std::shared_ptr<Machine> rules_;
    Index slots_ = 0;
    std::vector<std::unique_ptr<Task[]>> tasks_;  // of each slot
    std::vector<Place> uses_;
    std::vector<Index> todo_;                  // ring: nodes that the rules have told to start
    std::vector<Flag> failed_;                 // [R] whether a node of the request in a slot has failed
    std::vector<std::deque<double>> samples_;  // [V] seconds of the last runs

    mutable std::mutex mutex_;
    std::vector<Incident> incidents_;  // room for all that can happen is reserved
    std::vector<Task*> offered_;       // [R] task of the request in a slot that a lane was given last
    std::vector<Flag> relayed_;        // [R] whether the relay is told of its end
    std::vector<Index> relay_next_;    // slots that it is to be told of
    std::shared_ptr<const Relay> relay_;
    std::deque<Task*> direct_;  // tasks that start on the thread that decides to start them
    std::shared_ptr<Bell> bell_;
    std::function<void()> when_over_;
    bool ring_ = false, admitting_ = false, ended_ = false;
    std::atomic<bool> stopped_{true}, over_{true};
    std::atomic<int> inside_{0};           // lanes that run something of it
    std::int64_t left_ = 0, waiting_ = 0;  // requests in flight, and one more while others may be admitted; those that follow
    std::uint64_t runs_ = 0;
    double begin_ = 0.0, end_ = 0.0;
    std::atomic<double> spin_{0.0};
    std::atomic<int> priority_{0};
    std::thread::id caller_;    // the thread that waits
    Helper* helper_ = nullptr;  // the caller that decides just now, if it may run nodes that start
    Event changed_, halted_;    // for threads that wait for the run, and for lanes that only pass time
};

}  // namespace placeit
