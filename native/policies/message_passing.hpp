// Message passing level by level (GiPH, Equation 1), with its gradient.
//
// N nodes of L levels with embeddings of F numbers, M edges with messages of H numbers. T is float or double.
#pragma once

#include <cstdint>

#include "rules/span.hpp"

namespace placeit {

/// Edges in the order of message passing in one direction.
struct EdgeOrder {
    Span<const std::int64_t> src;          // [M] from which node a message comes
    Span<const std::int64_t> dst;          // [M] to which node it goes
    Span<const std::int64_t> edges;        // [M] edges by the level that they go to, first to last
    Span<const std::int64_t> node_bounds;  // [L + 1] nodes of each level, in ascending order whatever the direction
    Span<const std::int64_t> bounds;       // [L + 1] where each level's edges begin in `edges`
    bool descending = false;               // whether messages go to lower levels; then `bounds` begins with the highest level
};

/// The layers for messages and for their mean, or the gradients of these layers.
template <class T>
struct Layers {
    Grid<T> node_weight;  // [H, F]
    Span<T> node_bias;    // [H]
    Grid<T> weight;       // [F, H]
    Span<T> bias;         // [F]
};

/// Values of a forward pass that the backward pass needs.
template <class T>
struct Messages {
    Grid<T> sent;      // [N, H] the node's part of the messages that it sends
    Grid<T> mean;      // [N, H] of the messages that a node received, zero before the pass
    Span<T> received;  // [N] number of these messages, zero before the pass
};

/// Replace the features of nodes, `embedding`, [N, F], by their embeddings:
/// e[u] = x[u] + relu(weight m[u] + bias), where m[u] is the mean over edges (v, u) of
/// relu(node_weight e[v] + node_bias + edges[v, u]); a node without in-edges keeps its features.
///
/// Throws std::out_of_range if the order names a node or an edge that does not exist.
template <class T>
void pass_forward(const EdgeOrder& order, const Layers<const T>& layers, Grid<const T> edges, Grid<T> embedding,
                  const Messages<T>& messages);

/// Add the gradients of edges, [M, H], and layers. `gradient`, [N, F], has the gradient of the embeddings, and is replaced by
/// the gradient of the features.
template <class T>
void pass_backward(const EdgeOrder& order, const Layers<const T>& layers, Grid<const T> edges, Grid<const T> embedding,
                   const Messages<const T>& messages, Grid<T> gradient, Grid<T> of_edges, const Layers<T>& of_layers);

}  // namespace placeit
