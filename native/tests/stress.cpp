// Runs random graphs on lanes without Python, for sanitizers to judge: entries fail, nodes are reported by other threads,
// requests come one by one, callers run segments themselves, and runs are cancelled or late at random moments. Fails if a lane
// is left waiting, an order is violated, or incidents contradict what ran.
//
// Usage: stress [GRAPHS] [LANES] [SEED]
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "executor/clock.hpp"
#include "executor/executor.hpp"
#include "executor/request_queue.hpp"

using namespace placeit;

namespace {

constexpr unsigned timeout_s = 60;  // of a graph, before SIGALRM says that a lane is left waiting

struct Random {
    std::mt19937_64 engine;
    int below(int limit) { return static_cast<int>(engine() % static_cast<std::uint64_t>(limit)); }
    double below(double limit) { return std::uniform_real_distribution<>(0.0, limit)(engine); }
    bool chance(double p) { return below(1.0) < p; }
};

/// The work of a segment: it checks that its inputs were written in the same request. Its members are not atomic on purpose:
/// lanes have to order the threads that read and write them.
struct Segment {
    std::vector<const Segment*> reads;
    int* inside = nullptr;  // how many run on its device and on devices that share its cores; null: nothing is to run
    int runs = 0, microseconds = 0;
    bool fails = false, wrong = false;

    static int run(void* argument) {
        auto& segment = *static_cast<Segment*>(argument);
        segment.wrong |= (*segment.inside)++ != 0;
        for (const Segment* other : segment.reads) segment.wrong |= other->runs <= segment.runs;
        const auto until = Clock::now() + std::chrono::microseconds(segment.microseconds);
        while (Clock::now() < until) continue;
        ++segment.runs;
        --*segment.inside;
        return segment.fails;
    }
};

/// Threads that run asynchronous segments and report their ends, twice at times.
class Reporters {
public:
    explicit Reporters(int count) {
        for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
    }
    ~Reporters() {
        {
            const std::scoped_lock lock(mutex_);
            closing_ = true;
        }
        changed_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }
    void add(std::function<void()> job) {
        {
            const std::scoped_lock lock(mutex_);
            jobs_.push_back(std::move(job));
        }
        changed_.notify_one();
    }
    void drain() {
        std::unique_lock lock(mutex_);
        drained_.wait(lock, [this] { return jobs_.empty() && running_ == 0; });
    }

private:
    void work() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
            const std::function<void()> job = std::move(jobs_.front());
            jobs_.pop_front();
            ++running_;
            lock.unlock();
            job();
            lock.lock();
            --running_;
            drained_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_, drained_;
    std::deque<std::function<void()>> jobs_;
    int running_ = 0;
    bool closing_ = false;
    std::vector<std::thread> threads_;
};

/// The entry of an asynchronous node.
struct Launch {
    Reporters* reporters = nullptr;
    Executor* executor = nullptr;
    Segment* segment = nullptr;
    Index node = -1;

    static int start(void* argument) {
        auto& launch = *static_cast<Launch*>(argument);
        launch.reporters->add([&launch, serial = launch.executor->serial(launch.node)] {
            const double begin = now();
            const int status = Segment::run(launch.segment);
            const bool twice = launch.node % 3 == 0;
            launch.executor->report(launch.node, serial, begin, now(), status);
            if (twice) launch.executor->report(launch.node, serial, begin, now(), 1);
        });
        return 0;
    }
};

/// A random graph, placed at random, whose devices and emulated links take all lanes.
class Graph {
public:
    Graph(Random& random, Index count, Reporters& reporters)
        : ops(1 + random.below(20)), slots(1 + random.below(3)), devices(1 + random.below(count)), inside(at(devices)) {
        std::vector<Index> edges, tensors, order;
        for (Index w = 0; w < ops; ++w) {
            order.push_back(w);
            for (Index v = 0; v < w; ++v) {
                if (!random.chance(0.15)) continue;
                edges.insert(edges.end(), {v, w});
                // a new tensor, or the tensor of the op's other edges
                tensors.push_back(random.chance(0.5) ? v : ops + static_cast<Index>(tensors.size()));
            }
            place.push_back(random.below(devices));
        }
        const std::size_t n = at(ops), d = at(devices), e = tensors.size();
        std::vector<Index> numbers(n + e, -1);  // tensors are numbered from 0
        Index next = 0;
        for (Index& tensor : tensors) {
            Index& number = numbers[at(tensor)];
            if (number < 0) number = next++;
            tensor = number;
        }
        ones.assign(std::max({n, e, d}) * d, 1.0);
        std::vector<Flag> conflicts(d * d, 0);
        const bool paired = random.chance(0.3);  // whether every other device shares cores with the one before it
        if (paired) {
            for (std::size_t i = 1; i < d; i += 2) conflicts[i * d + i - 1] = conflicts[(i - 1) * d + i] = 1;
        }
        ProblemArrays problem;
        problem.compute = {ones.data(), n, d};
        problem.edges = {edges.data(), e, 2};
        problem.edge_bytes = {ones.data(), e};
        problem.edge_tensor = tensors;
        problem.latency = problem.bandwidth = {ones.data(), d, d};
        problem.cut = {ones.data(), e, d};
        problem.param_bytes = {ones.data(), n};
        problem.memory = {ones.data(), d};
        problem.conflicts = {conflicts.data(), d, d};
        problem.cliques = {conflicts.data(), 0, d};
        problem.order = order;
        tables = make_tables(problem);
        const auto discipline = static_cast<Discipline>(random.below(2));
        rules = std::make_shared<Machine>(tables, place, LinkModel::channel, discipline, slots);
        if (discipline != Discipline::fifo) rules->rank(Span<const double>(ones.data(), n));
        build_lanes(random, count, paired, reporters);
    }
    ~Graph() {
        executor.reset();
        for (const auto& lane : lanes) lane->close();
        for (std::thread& thread : threads) thread.join();
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    const Index ops, slots, devices;
    int computing = 0;  // ops that run something
    std::vector<Index> place;
    std::vector<int> inside;
    std::vector<double> ones;  // what the tables view
    Tables tables;
    std::shared_ptr<Machine> rules;
    std::vector<Segment> segments;  // of all slots
    std::vector<Launch> launches;
    std::vector<std::shared_ptr<Lane>> lanes;
    std::vector<std::thread> threads;
    std::unique_ptr<Executor> executor;

private:
    void build_lanes(Random& random, Index count, bool paired, Reporters& reporters) {
        const double lends = random.chance(0.5) ? 1.0 : 0.0, spins = random.chance(0.3) ? 2e-5 : 0.0;
        for (Index k = 0; k < count; ++k) {
            lanes.push_back(std::make_shared<Lane>());
            lanes.back()->lends = lends;
            lanes.back()->spins = spins;
            threads.emplace_back([lane = lanes.back()] { lane->work(); });
        }
        std::vector<double> slowdown(at(count), 0.0);
        for (Index d = 0; d < devices; ++d) slowdown[at(d)] = random.chance(0.2) ? 1.5 : 1.0;
        executor = std::make_unique<Executor>(rules, lanes, slowdown);
        executor->spin(spins);
        segments = std::vector<Segment>(at(ops) * at(slots));
        launches = std::vector<Launch>(segments.size());
        Matrix<Index> link(at(devices), at(devices), -1);  // the last lanes; other transfers end at once
        Index free = devices;
        std::vector<Flag> idle(at(ops), 0);
        for (Flag& nothing : idle) computing += !(nothing = random.chance(0.1));
        for (Index slot = 0; slot < slots; ++slot) {
            const Index base = slot * rules->nodes();
            for (Index v = 0; v < ops; ++v) {
                Segment& segment = segments[at(slot * ops + v)];
                if (idle[at(v)]) continue;
                segment.inside = &inside[at(paired ? place[at(v)] / 2 : place[at(v)])];
                segment.microseconds = random.below(40);
                if (random.chance(0.2)) {
                    Launch& launch = launches[at(slot * ops + v)] = {&reporters, executor.get(), &segment, base + v};
                    executor->set(base + v, {random.chance(0.5) ? place[at(v)] : -1, {&Launch::start, &launch}, 0.0, true});
                } else {
                    executor->set(base + v, {place[at(v)], {&Segment::run, &segment}, 0.0});
                }
            }
            for (Index p = 0; p < tables.edges(); ++p) {
                const Edge& edge = tables.edge[at(p)];
                const Segment& producer = segments[at(slot * ops) + edge.tail];
                if (producer.inside) segments[at(slot * ops) + edge.head].reads.push_back(&producer);
                const Index src = place[edge.tail], dst = place[edge.head];
                if (src == dst) continue;
                Index& lane = link(at(src), at(dst));
                if (lane < 0 && free < count) lane = free++;
                if (lane >= 0) executor->set(base + ops + p, {lane, {}, random.below(5e-5)});
            }
        }
    }
};

/// Add requests to a run, each in one of the first slots that is free, until there are enough of them or the run is stopped;
/// returns how many. Some are waited for one by one.
int serve(Random& random, Executor& executor, Index slots, const Bell& bell, int wanted, bool goodbye, bool grow,
          std::vector<Incident>& incidents) {
    std::vector<Index> free;
    free.reserve(at(slots));
    for (Index slot = 0; slot < slots; ++slot) free.push_back(slot);
    int admitted = 0;
    std::size_t ended = 0, seen = 0;
    while (!executor.stopped() && (admitted < wanted || ended < static_cast<std::size_t>(admitted))) {
        while (!free.empty() && admitted < wanted) {
            const Index slot = free.back();
            const bool begins = executor.admit(slot);
            free.pop_back();
            ++admitted;
            if (begins && random.chance(0.3)) executor.run_offered(slot);
        }
        if (std::exchange(grow, false)) executor.grow(executor.slots() + 1);  // while others run
        pollfd polled{bell.descriptor(), POLLIN, 0};
        poll(&polled, 1, 1);
        std::uint64_t rung;
        if (polled.revents && read(bell.descriptor(), &rung, sizeof rung) < 0) std::perror("read");
        for (Incident& incident : executor.incidents()) incidents.push_back(incident);
        for (; seen < incidents.size(); ++seen) {
            if (const auto* request = std::get_if<Ended>(&incidents[seen])) {
                free.push_back(request->slot);
                ++ended;
            }
        }
    }
    if (goodbye) {
        executor.admit_no_more();
    } else {
        executor.stop();  // as after an exception in the thread that serves
    }
    return admitted;
}

struct Counts {
    int ended = 0, failed = 0, cancelled = 0, late = 0;
};

/// Performs one run; returns what is wrong with it, or null.
const char* run(Random& random, Graph& graph, Reporters& reporters, Counts& counts) {
    Executor& executor = *graph.executor;
    const bool serves = random.chance(0.5), goodbye = random.chance(0.8), grows = random.chance(0.1);
    const int waiting = serves ? 0 : random.below(5), wanted = random.below(6);
    const double cancel_after = random.chance(0.3) ? random.below(1e-3) : -1.0;
    const double deadline = random.chance(0.3) ? now() + random.below(1e-3) : Executor::never;
    for (Segment& segment : graph.segments) {
        segment.runs = 0;
        segment.fails = false;
    }
    if (random.chance(0.3)) graph.segments[at(random.below(static_cast<int>(graph.segments.size())))].fails = true;
    std::vector<Index> first;
    for (Index slot = 0; !serves && slot < graph.slots; ++slot) first.push_back(slot);

    std::vector<Incident> incidents;
    int requests = static_cast<int>(first.size()) + waiting;
    std::atomic<bool> over{false};
    std::thread other;
    if (cancel_after >= 0) {
        other = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::duration<double>(cancel_after));
            executor.stop();
            while (!over) {  // other threads may look at a run at any time
                executor.running();
                executor.ran(0);
                std::this_thread::yield();
            }
        });
    }
    if (serves) {
        const auto bell = std::make_shared<Bell>();
        executor.open(bell);
        requests = serve(random, executor, graph.slots, *bell, wanted, goodbye, grows, incidents);
        executor.wait(deadline, [] {});
    } else {
        executor.run(first, waiting, deadline, [] {});
    }
    executor.watch(Executor::never, [] {});
    reporters.drain();
    over = true;
    if (other.joinable()) other.join();

    for (Incident& incident : executor.incidents()) incidents.push_back(incident);
    int ended = 0, stops = 0, dropped = 0;
    for (const Incident& event : incidents) {
        if (std::holds_alternative<Broken>(event)) return "the rules broke down";
        const bool failed = std::holds_alternative<Failed>(event);
        ended += std::holds_alternative<Ended>(event);
        dropped += failed && serves;  // and the others go on
        stops += !std::holds_alternative<Ended>(event) && !(failed && serves);
        counts.failed += failed;
        counts.cancelled += std::holds_alternative<Cancelled>(event);
        if (const auto* late = std::get_if<Late>(&event)) {
            ++counts.late;
            for (const Index node : late->running) {
                const Step step = executor.step(node);
                if (step.lane < 0 && !step.entry.function) return "what ran when a run was late is nothing that runs";
            }
        }
    }
    counts.ended += stops == 0;
    int runs = 0;
    for (const Segment& segment : graph.segments) {
        if (segment.wrong) return "a segment ran before what it reads, or beside another one of its device";
        runs += segment.runs;
    }
    for (Index slot = 0; slot < graph.slots; ++slot) {
        if (graph.rules->request(slot).active) return "a request is in flight after the run";
    }
    if (!executor.running().empty()) return "a node is on a lane after the run";
    if (stops > 1) return "a run was stopped twice";
    if (stops + dropped == 0 && runs != requests * graph.computing) return "not every segment of every request ran once";
    if (runs > requests * graph.computing) return "a segment ran too often";
    if (dropped > requests) return "a request failed twice";
    if (stops == 0 && serves && ended != requests) return "not every request was reported as ended";
    return nullptr;
}

/// A request of a queue, whose output has to be its input.
struct Sent {
    double in = 0.0, out = -1.0;
    std::shared_ptr<Submission> request;
};

Memory memory(double& value) {
    return {reinterpret_cast<std::byte*>(&value), sizeof value};
}

/// Requests of a queue: one thread submits, cancels and waits, and this one does what a replica's thread does, and stops the
/// run now and then. Returns what is wrong, or null.
const char* run_queue(Random& random, Graph& graph, Reporters& reporters) {
    Executor& executor = *graph.executor;
    for (Segment& segment : graph.segments) {
        segment.runs = 0;
        segment.fails = random.chance(0.05);
    }
    const auto queue = std::make_shared<RequestQueue>();
    const auto bell = std::make_shared<Bell>();
    std::deque<double> values(at(graph.slots));
    std::vector<Tensors> slots;
    slots.reserve(values.size());
    for (double& value : values) slots.push_back({{memory(value)}, {memory(value)}});
    const Index replica = queue->add(executor, slots, bell, 0);
    queue->open(replica);

    std::deque<Sent> sent;
    std::atomic<bool> submitted{false};
    const int wanted = random.below(20);
    std::thread client([&, chance = Random{std::mt19937_64(random.engine())}]() mutable {
        for (int i = 0; i < wanted; ++i) {
            Sent& one = sent.emplace_back();
            one.in = i;
            const double deadline = chance.chance(0.2) ? now() + chance.below(1e-3) : Executor::never;
            one.request = std::make_shared<Submission>(Tensors{{memory(one.in)}, {memory(one.out)}}, deadline);
            queue->put(one.request);
            if (chance.chance(0.1)) queue->cancel(one.request);
            if (chance.chance(0.1)) queue->watch(*one.request);
            if (chance.chance(0.5)) queue->wait(*one.request, now() + chance.below(1e-3), [] {});
        }
        submitted = true;
    });
    const char* wrong = nullptr;
    while (!wrong && (!submitted || queue->waiting() > 0 || queue->in_flight(replica) > 0)) {
        pollfd polled{bell->descriptor(), POLLIN, 0};
        poll(&polled, 1, 1);
        std::uint64_t rung;
        if (polled.revents && read(bell->descriptor(), &rung, sizeof rung) < 0) std::perror("read");
        for (const Incident& incident : executor.incidents()) {
            if (std::holds_alternative<Broken>(incident)) wrong = "the rules broke down";
            const auto* const ended = std::get_if<Ended>(&incident);
            if (ended) queue->drop(replica, ended->slot);
        }
        queue->expire();
        for (const auto& request : queue->over(random.chance(0.5))) queue->acknowledge(request);
        if (random.chance(0.02)) {  // as after an exception in the thread that serves
            executor.stop();
            queue->close(replica);
            executor.wait(Executor::never, [] {});
            reporters.drain();
            queue->again(replica);
            queue->open(replica);
        }
    }
    client.join();
    queue->close(replica);
    executor.admit_no_more();
    executor.wait(Executor::never, [] {});
    reporters.drain();
    executor.leave();
    for (const Sent& one : sent) {
        const State state = one.request->state;
        if (state == State::waiting || state == State::flying) return "a request of a queue is not over";
        if (state == State::ended && one.in != one.out) return "a request of a queue has another one's output";
        if (state != State::ended && one.out != -1.0) return "a request of a queue that has not ended well has an output";
    }
    return wrong;
}

}  // namespace

int main(int count, char** arguments) {
    const auto argument = [&](int i, int otherwise) { return i < count ? std::atoi(arguments[i]) : otherwise; };
    const int graphs = argument(1, 1000), lanes = argument(2, 8), seed = argument(3, 0);
    Counts counts;
    Reporters reporters(2);
    for (int i = 0; i < graphs; ++i) {
        Random random{std::mt19937_64(static_cast<std::uint64_t>(seed) * 1'000'003 + static_cast<std::uint64_t>(i))};
        Graph graph(random, lanes, reporters);
        for (int turn = 0; turn < 3; ++turn) {
            alarm(timeout_s);
            const bool queued = random.chance(0.3);
            if (const char* wrong = queued ? run_queue(random, graph, reporters) : run(random, graph, reporters, counts)) {
                std::fprintf(stderr, "graph %d, run %d: %s\n", i, turn, wrong);
                return 1;
            }
        }
    }
    std::printf("%d graphs on %d lanes, no lane left waiting: %d runs ended, %d failed, %d were cancelled, %d late\n", graphs,
                lanes, counts.ended, counts.failed, counts.cancelled, counts.late);
    return 0;
}
