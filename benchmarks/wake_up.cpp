// Prints the median seconds from waking a thread on another core until it goes on, as lanes wake each other.
//
// Usage: wake_up CORE OTHER_CORE BUSY_SECONDS TURNS
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

static void bind_to(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

int main(int count, char** arguments) {
    if (count != 5) return 2;
    const int core = std::atoi(arguments[1]), other = std::atoi(arguments[2]), turns = std::atoi(arguments[4]);
    const Seconds busy(std::atof(arguments[3]));  // a core that has nothing to do for longer sleeps more deeply
    std::mutex mutex;
    std::condition_variable bell, back;
    bool rung = false;
    Clock::time_point posted;
    std::vector<double> seconds;
    std::thread waits([&] {
        bind_to(core);
        for (int i = 0; i < turns; ++i) {
            std::unique_lock lock(mutex);
            bell.wait(lock, [&] { return rung; });
            seconds.push_back(Seconds(Clock::now() - posted).count());
            rung = false;
            lock.unlock();
            back.notify_one();
        }
    });
    bind_to(other);
    for (int i = 0; i < turns; ++i) {
        for (const auto begin = Clock::now(); Clock::now() - begin < busy;) continue;
        {
            const std::lock_guard lock(mutex);
            posted = Clock::now();
            rung = true;
        }
        bell.notify_one();
        std::unique_lock lock(mutex);
        back.wait(lock, [&] { return !rung; });
    }
    waits.join();
    std::nth_element(seconds.begin(), seconds.begin() + turns / 2, seconds.end());
    std::printf("%.9f\n", seconds[static_cast<std::size_t>(turns / 2)]);
}
