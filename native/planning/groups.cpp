#include "planning/groups.hpp"

#include <algorithm>
#include <stdexcept>

namespace placeit {

void check(const Groups& groups) {
    const auto within = [](std::int32_t number, std::size_t count) {
        return number >= 0 && static_cast<std::size_t>(number) < count;
    };
    std::vector<std::int32_t> waiting(groups.groups()), next;
    for (const auto& [producer, consumer, tensor] : groups.edge) {
        if (!within(producer, groups.groups()) || !within(consumer, groups.groups())) {
            throw std::invalid_argument("'edges' holds a group that does not exist.");
        }
        if (!within(tensor, groups.tensor_bytes.size()))
            throw std::invalid_argument("'edges' holds a tensor that does not exist.");
        ++waiting[consumer];
    }
    const auto before = [](const Move& a, const Move& b) { return a.producer < b.producer; };
    if (!std::is_sorted(groups.edge.begin(), groups.edge.end(), before)) {
        throw std::invalid_argument("'edges' is not sorted by producer.");
    }
    for (std::size_t g = 0; g < waiting.size(); ++g) {
        if (waiting[g] == 0) next.push_back(static_cast<std::int32_t>(g));
    }
    for (std::size_t read = 0; read < next.size(); ++read) {
        const auto [first, last] = std::equal_range(groups.edge.begin(), groups.edge.end(), Move{next[read], 0, 0}, before);
        for (auto edge = first; edge != last; ++edge) {
            if (--waiting[edge->consumer] == 0) next.push_back(edge->consumer);
        }
    }
    if (next.size() < waiting.size()) throw std::invalid_argument("'edges' has groups that read from each other in a circle.");
}

}  // namespace placeit
