#include "policies/message_passing.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "policies/vectors.hpp"

namespace placeit {
namespace {

template <class T>
Matrix<T> transposed(Grid<const T> a) {
    Matrix<T> made(a.columns(), a.rows());
    for (std::size_t i = 0; i < a.rows(); ++i) {
        for (std::size_t j = 0; j < a.columns(); ++j) made(j, i) = a(i, j);
    }
    return made;
}

[[noreturn]] void fail(const char* name, std::int64_t number, std::size_t size) {
    throw std::out_of_range("'" + std::string(name) + "' names number " + std::to_string(number) + " of " +
                            std::to_string(size) + ".");
}

/// A number of a node, an edge or a bound that is less than `size`.
inline std::size_t checked(const char* name, std::int64_t number, std::size_t size) {
    const auto index = static_cast<std::size_t>(number);
    if (index >= size) fail(name, number, size);
    return index;
}

/// The nodes and the edges, in the order of `edges`, of the i-th level that gets messages.
struct Level {
    Level(const EdgeOrder& order, std::size_t i, std::size_t nodes) {
        const std::size_t level = order.descending ? order.bounds.size() - 2 - i : i, edges = order.edges.size();
        first = checked("node_bounds", order.node_bounds[level], nodes + 1);
        last = checked("node_bounds", order.node_bounds[level + 1], nodes + 1);
        begin = checked("bounds", order.bounds[i], edges + 1);
        end = checked("bounds", order.bounds[i + 1], edges + 1);
    }
    std::size_t first, last, begin, end;
};

/// The edge at a position of the order, and its ends.
struct Ends {
    Ends(const EdgeOrder& order, std::size_t k, std::size_t nodes)
        : m(checked("edges", order.edges[k], order.src.size())),
          v(checked("src", order.src[m], nodes)),
          u(checked("dst", order.dst[m], nodes)) {}
    std::size_t m, v, u;
};

}  // namespace

template <class T>
PLACEIT_AVX2 void pass_forward(const EdgeOrder& order, const Layers<const T>& layers, Grid<const T> edges, Grid<T> embedding,
                               const Messages<T>& messages) {
    const std::size_t nodes = embedding.rows(), width = embedding.columns(), hidden = layers.node_bias.size();
    const Matrix<T> to_message = transposed(layers.node_weight), to_embedding = transposed(layers.weight);
    std::vector<T> transform(width);
    for (std::size_t i = 0; i + 1 < order.bounds.size(); ++i) {
        const Level level(order, i, nodes);
        for (std::size_t k = level.begin; k < level.end; ++k) {
            const auto [m, v, u] = Ends(order, k, nodes);
            messages.received[u] += 1;
            T* __restrict sum = messages.mean.row(u).data();
            const T *sent = messages.sent.row(v).data(), *edge = edges.row(m).data();
            for (std::size_t h = 0; h < hidden; ++h) sum[h] += std::max(sent[h] + edge[h], T(0));
        }
        for (std::size_t u = level.first; u < level.last; ++u) {
            const auto row = embedding.row(u);
            if (messages.received[u] > 0) {
                std::copy(layers.bias.begin(), layers.bias.end(), transform.begin());
                const auto mean = messages.mean.row(u);
                for (T& value : mean) value /= messages.received[u];
                add_product<T>(transform, mean, to_embedding.values().data());
                for (std::size_t f = 0; f < width; ++f) row[f] += std::max(transform[f], T(0));
            }
            std::copy(layers.node_bias.begin(), layers.node_bias.end(), messages.sent.row(u).begin());
            add_product<T>(messages.sent.row(u), row, to_message.values().data());
        }
    }
}

template <class T>
PLACEIT_AVX2 void pass_backward(const EdgeOrder& order, const Layers<const T>& layers, Grid<const T> edges,
                                Grid<const T> embedding, const Messages<const T>& messages, Grid<T> gradient, Grid<T> of_edges,
                                const Layers<T>& of_layers) {
    const std::size_t nodes = gradient.rows(), width = gradient.columns(), hidden = layers.node_bias.size();
    const Matrix<T> to_embedding = transposed(layers.weight);
    Matrix<T> of_sent(nodes, hidden), of_mean(nodes, hidden);
    std::vector<T> transform(width);
    for (std::size_t i = order.bounds.size() - 1; i-- > 0;) {
        const Level level(order, i, nodes);
        for (std::size_t u = level.first; u < level.last; ++u) {
            const Span<const T> sent = of_sent.row(u), received = messages.mean.row(u);
            for (std::size_t h = 0; h < hidden; ++h)
                add_product<T>(of_layers.node_weight.row(h), {&sent[h], 1}, embedding.row(u).data());
            for (std::size_t h = 0; h < hidden; ++h) of_layers.node_bias[h] += sent[h];
            add_product<T>(gradient.row(u), sent, layers.node_weight.data());
            if (messages.received[u] == 0) continue;
            std::copy(layers.bias.begin(), layers.bias.end(), transform.begin());
            add_product<T>(transform, received, to_embedding.values().data());
            T* __restrict sum = of_mean.row(u).data();
            for (std::size_t f = 0; f < width; ++f) {
                if (!(transform[f] > 0)) continue;
                const T g = gradient(u, f), count = messages.received[u];
                of_layers.bias[f] += g;
                add_product<T>(of_layers.weight.row(f), {&g, 1}, received.data());
                const T* weight = layers.weight.row(f).data();
                for (std::size_t h = 0; h < hidden; ++h) sum[h] += g * weight[h] / count;
            }
        }
        for (std::size_t k = level.begin; k < level.end; ++k) {
            const Ends at(order, k, nodes);
            const T *sent = messages.sent.row(at.v).data(), *edge = edges.row(at.m).data(), *of = of_mean.row(at.u).data();
            T* __restrict to_edge = of_edges.row(at.m).data(), * __restrict to_sent = of_sent.row(at.v).data();
            for (std::size_t h = 0; h < hidden; ++h) {
                const T g = sent[h] + edge[h] > 0 ? of[h] : T(0);
                to_edge[h] = g;
                to_sent[h] += g;
            }
        }
    }
}

template void pass_forward(const EdgeOrder&, const Layers<const float>&, Grid<const float>, Grid<float>,
                           const Messages<float>&);
template void pass_forward(const EdgeOrder&, const Layers<const double>&, Grid<const double>, Grid<double>,
                           const Messages<double>&);
template void pass_backward(const EdgeOrder&, const Layers<const float>&, Grid<const float>, Grid<const float>,
                            const Messages<const float>&, Grid<float>, Grid<float>, const Layers<float>&);
template void pass_backward(const EdgeOrder&, const Layers<const double>&, Grid<const double>, Grid<const double>,
                            const Messages<const double>&, Grid<double>, Grid<double>, const Layers<double>&);

}  // namespace placeit
