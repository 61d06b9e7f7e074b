#include "placers/earliest_finish.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "placers/list_scheduling.hpp"
#include "simulator/simulation.hpp"

namespace placeit {
namespace {

/// The schedule of a placement, seconds, and the memory that it leaves, bytes.
struct Schedule {
    std::vector<double> start, finish;  // [V]
    std::vector<std::size_t> by_start;  // [V]
    std::vector<double> free;           // [D]

    Schedule(const Tables& tables, Span<const std::int32_t> place)
        : start(place.size()), finish(place.size()), by_start(place.size()), free(tables.memory) {
        Simulation simulation(tables, 1);
        simulation.makespan(place, {}, Options{});
        for (std::size_t v = 0; v < place.size(); ++v) {
            start[v] = simulation.start(static_cast<std::int32_t>(v));
            finish[v] = simulation.finish(static_cast<std::int32_t>(v));
            free[static_cast<std::size_t>(place[v])] -= tables.op[v].param_bytes;
        }
        std::iota(by_start.begin(), by_start.end(), std::size_t{0});
        std::stable_sort(by_start.begin(), by_start.end(),
                         [this](std::size_t a, std::size_t b) { return start[a] < start[b]; });
    }
};

}  // namespace

void earliest_finish_devices(const Tables& tables, Span<const std::int32_t> place, Span<const std::int64_t> ops,
                             Span<std::int32_t> devices) {
    const Schedule schedule(tables, place);
    const std::size_t count = tables.memory.size();
    std::vector<double> at(count);   // when the op could start on each device, seconds
    std::vector<Flag> known(count);  // whether the op fits there before the next op, or cannot run there
    for (std::size_t k = 0; k < ops.size(); ++k) {
        const auto v = static_cast<std::size_t>(ops[k]), here = static_cast<std::size_t>(place[v]);
        const auto has_room = [&](std::size_t d) { return d == here || tables.op[v].param_bytes <= schedule.free[d]; };
        for (std::size_t d = 0; d < count; ++d) {
            known[d] = tables.compute(v, d) == infinity || !has_room(d);
            at[d] = 0.0;
        }
        for (std::size_t i = tables.op[v].in_first; i < tables.op[v + 1].in_first; ++i) {
            const std::size_t p = tables.in_edge[i], u = tables.edge[p].tail, from = static_cast<std::size_t>(place[u]);
            for (std::size_t d = 0; d < count; ++d) at[d] = std::max(at[d], arrival(tables, p, from, d, schedule.finish[u]));
        }
        for (const std::size_t u : schedule.by_start) {
            if (u == v) continue;
            const auto wait = [&](std::size_t d) {
                if (known[d]) return;
                known[d] = at[d] + tables.compute(v, d) <= schedule.start[u];
                if (!known[d]) at[d] = std::max(at[d], schedule.finish[u]);
            };
            const auto on = static_cast<std::size_t>(place[u]);
            wait(on);
            for (std::size_t d = 0; d < count && !tables.conflict.empty(); ++d) {
                if (tables.conflict(on, d)) wait(d);
            }
        }
        const auto finish = [&](std::size_t d) { return at[d] + tables.compute(v, d); };
        std::size_t best = here;
        for (std::size_t d = 0; d < count; ++d) {
            if (has_room(d) && finish(d) < finish(best)) best = d;
        }
        devices[k] = static_cast<std::int32_t>(best);
    }
}

}  // namespace placeit
