#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <limits>
#include <memory>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/lock.hpp"
#include "policies/doppler.hpp"
#include "policies/giph.hpp"
#include "policies/hsdag.hpp"
#include "policies/message_passing.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {
namespace {

using Ints = Array<const std::int32_t>;
using Longs = Array<const std::int64_t>;
using Doubles = Array<const double>;
using Shape = std::initializer_list<std::size_t>;

constexpr std::int64_t FAR = std::numeric_limits<std::int64_t>::max() / 4;  // sums of such numbers and sizes do not overflow

/// Arrays that are attributes of a Python object, such as a named tuple; their memory is held as long as this.
class Fields {
public:
    explicit Fields(nb::handle object) : object_(object) {}

    template <class T>
    Span<T> vector(const char* name, std::optional<std::size_t> size = {}) {
        return hold<T>(name).vector(name, size);
    }
    template <class T>
    Grid<T> grid(const char* name, std::optional<std::size_t> rows = {}, std::optional<std::size_t> columns = {}) {
        return hold<T>(name).grid(name, rows, columns);
    }
    template <class T>
    Grid<T> rows(const char* name, Shape shape) {
        return hold<T>(name).rows(name, shape);
    }
    template <class T>
    T value(const char* name) const {
        return nb::cast<T>(nb::getattr(object_, name));
    }

private:
    template <class T>
    const Array<T>& hold(const char* name) {
        auto array = std::make_shared<Array<T>>(nb::getattr(object_, name));
        held_.push_back(array);
        return *array;
    }

    nb::handle object_;
    std::vector<std::shared_ptr<void>> held_;
};

/// The arrays of episodes: placeit.learning.agents.doppler.features.Arrays.
Episodes episodes_of(Fields& arrays, const Tables& tables, const Affinity& affinity) {
    const std::size_t ops = tables.compute.rows(), devices = tables.compute.columns();
    if (affinity.ptr.size() != ops + 1) throw nb::value_error("'affinity' belongs to another problem.");
    const auto placement = arrays.grid<std::int32_t>("placement", {}, ops);
    const std::size_t count = placement.rows();
    check_range("placement", placement.all(), -1, tables.devices() - 1);
    return {tables,
            affinity,
            placement,
            arrays.grid<Flag>("candidates", count, ops),
            arrays.grid<std::int32_t>("waiting", count, ops),
            arrays.grid<double>("start", count, ops),
            arrays.grid<double>("finish", count, ops),
            arrays.grid<double>("load", count, devices),
            arrays.grid<double>("free", count, devices),
            arrays.grid<double>("used", count, devices),
            arrays.rows<float>("near", {count, devices, ops, HOPS})};
}

/// The record of decisions: placeit.learning.agents.doppler.episodes.Record.
Decisions record_of(Fields& record, const Episodes& episodes) {
    const std::size_t count = episodes.count(), ops = episodes.ops(), devices = episodes.devices();
    return {record.grid<std::int64_t>("order", count, ops),
            record.grid<std::int64_t>("at", count, ops),
            record.grid<std::int64_t>("ready", count, ops),
            record.grid<std::int64_t>("chosen", count, ops),
            {record.rows<float>("inputs", {count, ops, devices, DEVICE_INPUTS}),
             record.rows<Flag>("allowed", {count, ops, devices})},
            record.grid<Flag>("decided", count, ops)};
}

/// The policies that decide: placeit.learning.agents.doppler.episodes.Policy.
Policy policy_of(Fields& policy, const Episodes& episodes) {
    const std::size_t count = episodes.count(), ops = episodes.ops();
    const auto select = policy.grid<const float>("select", {}, ops);
    const auto bias = policy.vector<const float>("bias");
    const std::size_t n = select.rows(), width = bias.size();
    if (n != 1 && n != count) throw nb::value_error("'select' must have one row, or one for each episode.");
    return {select,
            policy.rows<const float>("node", {n, ops, width}),
            policy.rows<const float>("placed", {n, ops, width}),
            policy.rows<float>("on", {count, episodes.devices(), width}),
            policy.grid<const float>("into", DEVICE_INPUTS, width),
            bias,
            policy.grid<const float>("onward", width, width),
            policy.vector<const float>("last", width + 1)};
}

/// An op of each episode, all of whose producers are placed.
Span<const std::int64_t> ready_ops(const Longs& ops, const Episodes& episodes) {
    const auto chosen = ops.vector("ops", episodes.count());
    check_range("ops", chosen, 0, static_cast<std::int64_t>(episodes.ops()) - 1);
    for (std::size_t b = 0; b < chosen.size(); ++b) {
        if (episodes.is_ready(b, static_cast<std::size_t>(chosen[b]))) continue;
        throw nb::value_error("'ops' holds one that reads what is not placed yet.");
    }
    return chosen;
}

void bind_doppler(nb::module_& module) {
    const auto view = [](auto& values, Shape shape) {
        return nb::ndarray<nb::numpy, const std::decay_t<decltype(values[0])>>(values.data(), shape);
    };
    constexpr auto owned = nb::rv_policy::reference_internal;
    nb::class_<Affinity>(module, "Affinity", "How likely walks of a few edges between different ops are (a sparse matrix).")
        .def_prop_ro(
            "ptr", [view](Affinity& self) { return view(self.ptr, {self.ptr.size()}); }, owned)
        .def_prop_ro(
            "op", [view](Affinity& self) { return view(self.op, {self.op.size()}); }, owned)
        .def_prop_ro("share", [view](Affinity& self) { return view(self.share.values(), {self.op.size(), HOPS}); }, owned);
    module.def(
        "affinity",
        [](const Longs& ptr, const Longs& to, const Doubles& chance) {
            const auto begins = ptr.vector("ptr"), ends = to.vector("to");
            const auto chances = amounts("chance", chance.vector("chance", ends.size()));
            if (begins.empty()) throw nb::value_error("'ptr' is empty.");
            check_range("ptr", begins, 0, static_cast<std::int64_t>(ends.size()));
            check_range("to", ends, 0, static_cast<std::int64_t>(begins.size()) - 2);
            const Released released;
            return affinity(begins, ends, chances);
        },
        "ptr"_a, "to"_a, "chance"_a);
    module.def(
        "device_features",
        [](const Tables& tables, const Affinity& affinity, nb::handle arrays, const Longs& ops, const Array<double>& made) {
            Fields fields(arrays);
            const auto episodes = episodes_of(fields, tables, affinity);
            const std::size_t devices = episodes.devices();
            const auto rows = made.rows("made", {episodes.count(), devices, DEVICE_FEATURES});
            std::size_t b = 0;
            for (const auto v : ready_ops(ops, episodes)) {
                episodes.features(b, static_cast<std::size_t>(v), {rows.row(b * devices).data(), devices, DEVICE_FEATURES});
                ++b;
            }
        },
        "tables"_a, "affinity"_a, "arrays"_a, "ops"_a, "made"_a);
    module.def(
        "place_ops",
        [](const Tables& tables, const Affinity& affinity, nb::handle arrays, const Longs& ops, const Longs& devices) {
            Fields fields(arrays);
            const auto episodes = episodes_of(fields, tables, affinity);
            const auto chosen = ready_ops(ops, episodes), on = devices.vector("devices", episodes.count());
            check_range("devices", on, 0, tables.devices() - 1);
            for (std::size_t b = 0; b < on.size(); ++b) {
                episodes.place(b, static_cast<std::size_t>(chosen[b]), static_cast<std::size_t>(on[b]));
            }
        },
        "tables"_a, "affinity"_a, "arrays"_a, "ops"_a, "devices"_a);
    module.def(
        "see_devices",
        [](const Tables& tables, const Affinity& affinity, nb::handle arrays, const Longs& ops, std::size_t step, double unit,
           const Array<float>& inputs, const Array<Flag>& allowed) {
            Fields fields(arrays);
            const auto episodes = episodes_of(fields, tables, affinity);
            const std::size_t count = episodes.count(), devices = episodes.devices();
            const Seen seen{inputs.rows("inputs", {count, episodes.ops(), devices, DEVICE_INPUTS}),
                            allowed.rows("allowed", {count, episodes.ops(), devices})};
            amount("unit", unit, MOST, 1.0 / MOST);
            if (step >= episodes.ops()) throw nb::value_error("'step' must be less than the number of ops.");
            Matrix<double> features(devices, DEVICE_FEATURES);
            std::size_t row = step;
            for (const auto v : ready_ops(ops, episodes)) {
                episodes.see(row / episodes.ops(), static_cast<std::size_t>(v), unit, features, seen, row);
                row += episodes.ops();
            }
        },
        "tables"_a, "affinity"_a, "arrays"_a, "ops"_a, "step"_a, "unit"_a, "inputs"_a, "allowed"_a);
    module.def(
        "play_episodes",
        [](std::size_t first, std::size_t last, const Tables& tables, const Affinity& affinity, nb::handle arrays,
           nb::handle record, nb::handle policy, nb::handle manner, const Ints& kept, const Doubles& rank, double unit,
           const Array<std::uint64_t>& random) {
            Fields state(arrays), recorded(record), deciding(policy), how(manner);
            const auto episodes = episodes_of(state, tables, affinity);
            const auto decisions = record_of(recorded, episodes);
            const auto policies = policy_of(deciding, episodes);
            const Manner played{how.value<bool>("select"), how.value<bool>("place"), how.value<bool>("draw"),
                                amount("explore", how.value<double>("explore"), 1.0)};
            if (first > last || last > episodes.ops())
                throw nb::value_error("'first' and 'last' are no steps of the episodes.");
            const auto stay = kept.grid("kept", episodes.count(), episodes.ops());
            check_range("kept", stay.all(), -1, tables.devices() - 1);
            const auto ranks = ordered("rank", rank.vector("rank", episodes.ops()));
            amount("unit", unit, MOST, 1.0 / MOST);
            const auto states = random.vector("random", episodes.count());
            const Released released;
            play(first, last, episodes, decisions, policies, played, stay, ranks, unit, states);
        },
        "first"_a, "last"_a, "tables"_a, "affinity"_a, "arrays"_a, "record"_a, "policy"_a, "manner"_a, "kept"_a, "rank"_a,
        "unit"_a, "random"_a);
}

/// The arrays that a gpNet writes: placeit.learning.agents.giph.gpnet.GpNets.
GpNetBatch batch_of(Fields& batch, const GpNet& net) {
    const auto src = batch.vector<std::int64_t>("src");
    const GpNetBatch views{src, batch.vector<std::int64_t>("dst", src.size()),
                           batch.grid<float>("edges", src.size(), GPNET_EDGE_FEATURES),
                           batch.grid<float>("nodes", {}, GPNET_NODE_FEATURES)};
    if (src.size() < net.edge_rows()) throw nb::value_error("'src' has fewer rows than the problem has edges.");
    if (views.nodes.rows() < net.node_rows()) throw nb::value_error("'nodes' has fewer rows than the problem has nodes.");
    return views;
}

/// A placement whose ops can run where they are.
Span<const std::int32_t> feasible(const Ints& placement, const GpNet& net) {
    const auto place = placement_of(net.tables(), placement, "placement");
    if (!net.is_feasible(place)) throw nb::value_error("'placement' has an op on a device that cannot run it.");
    return place;
}

void bind_giph(nb::module_& module) {
    nb::class_<GpNet>(module, "GpNet", "One problem of a batch of gpNets; one thread at a time may use it.")
        .def(
            "__init__",
            [](GpNet* self, const Tables& tables, const Longs& node, const Longs& first, double bandwidth, double unit,
               bool pivots) {
                const auto rows = node.grid("node", tables.compute.rows(), tables.compute.columns());
                const auto begins = first.vector("first", tables.edge.size());
                check_range("node", rows.all(), -1, FAR);
                check_range("first", begins, 0, FAR);
                new (self) GpNet(tables, {rows, begins, amount("bandwidth", bandwidth, MOST, 1.0 / MOST),
                                          amount("unit", unit, MOST, 1.0 / MOST), pivots});
            },
            "tables"_a, "node"_a, "first"_a, "bandwidth"_a, "unit"_a, "pivots"_a, nb::keep_alive<1, 2>())
        .def(
            "set",
            [](GpNet& self, const Ints& placement, nb::handle batch) {
                Fields fields(batch);
                return self.set(feasible(placement, self), batch_of(fields, self));
            },
            "placement"_a, "batch"_a)
        .def(
            "move",
            [](GpNet& self, std::size_t op, const Ints& placement, nb::handle batch) {
                Fields fields(batch);
                if (op >= self.tables().compute.rows()) throw nb::value_error("'op' must be less than the number of ops.");
                return self.move(op, feasible(placement, self), batch_of(fields, self));
            },
            "op"_a, "placement"_a, "batch"_a);
}

/// The order of messages: placeit.learning.agents.giph.message_passing.EdgeOrder.
EdgeOrder order_of(Fields& order) {
    const auto src = order.vector<const std::int64_t>("src"), bounds = order.vector<const std::int64_t>("bounds");
    if (bounds.empty()) throw nb::value_error("'bounds' is empty.");
    return {src,
            order.vector<const std::int64_t>("dst", src.size()),
            order.vector<const std::int64_t>("edges"),
            order.vector<const std::int64_t>("node_bounds", bounds.size()),
            bounds,
            order.value<bool>("descending")};
}

/// Layers or their gradients: placeit.learning.agents.giph.message_passing.Layers.
template <class T>
Layers<T> layers_of(Fields& layers, std::size_t width) {
    const auto bias = layers.vector<T>("node_bias");
    return {layers.grid<T>("node_weight", bias.size(), width), bias, layers.grid<T>("weight", width, bias.size()),
            layers.vector<T>("bias", width)};
}

/// The values that a forward pass keeps: placeit.learning.agents.giph.message_passing.Messages.
template <class T>
Messages<T> messages_of(Fields& messages, std::size_t nodes, std::size_t hidden) {
    return {messages.grid<T>("sent", nodes, hidden), messages.grid<T>("mean", nodes, hidden),
            messages.vector<T>("received", nodes)};
}

template <class T>
void bind_message_passing(nb::module_& module, const char* forward, const char* backward) {
    module.def(
        forward,
        [](nb::handle order, nb::handle layers, const Array<const T>& edges, const Array<T>& embedding, nb::handle messages) {
            Fields ordered(order), weights(layers), kept(messages);
            const auto rows = embedding.grid("embedding");
            const auto by_level = order_of(ordered);
            const auto by = layers_of<const T>(weights, rows.columns());
            const auto terms = edges.grid("edges", by_level.src.size(), by.node_bias.size());
            const auto made = messages_of<T>(kept, rows.rows(), by.node_bias.size());
            const Released released;
            pass_forward<T>(by_level, by, terms, rows, made);
        },
        "order"_a, "layers"_a, "edges"_a, "embedding"_a, "messages"_a);
    module.def(
        backward,
        [](nb::handle order, nb::handle layers, const Array<const T>& edges, const Array<const T>& embedding,
           nb::handle messages, const Array<T>& gradient, const Array<T>& of_edges, nb::handle of_layers) {
            Fields ordered(order), weights(layers), kept(messages), of_weights(of_layers);
            const auto rows = gradient.grid("gradient");
            const auto by_level = order_of(ordered);
            const auto by = layers_of<const T>(weights, rows.columns());
            const auto of = layers_of<T>(of_weights, rows.columns());
            const std::size_t nodes = rows.rows(), hidden = by.node_bias.size(), count = by_level.src.size();
            if (of.node_bias.size() != hidden) throw nb::value_error("'of_layers' and 'layers' differ in shape.");
            const auto terms = edges.grid("edges", count, hidden);
            const auto of_terms = of_edges.grid("of_edges", count, hidden);
            const auto found = embedding.grid("embedding", nodes, rows.columns());
            const auto made = messages_of<const T>(kept, nodes, hidden);
            const Released released;
            pass_backward<T>(by_level, by, terms, found, made, rows, of_terms, of);
        },
        "order"_a, "layers"_a, "edges"_a, "embedding"_a, "messages"_a, "gradient"_a, "of_edges"_a, "of_layers"_a);
}

void bind_hsdag(nb::module_& module) {
    module.def(
        "join_groups",
        [](const Longs& edges, std::size_t kept, std::int64_t least, std::int64_t most, const Array<std::int64_t>& group) {
            const auto ends = edges.grid("edges", {}, 2);
            const auto groups = group.vector("group");
            check_range("edges", ends.all(), 0, static_cast<std::int64_t>(groups.size()) - 1);
            return join_groups(ends, kept, least, most, groups);
        },
        "edges"_a, "kept"_a, "least"_a, "most"_a, "group"_a);
    module.def(
        "fractal_dimensions",
        [](const Ints& ptr, const Ints& others, const Array<double>& dimension) {
            const auto slopes = dimension.vector("dimension");
            const auto begins = ptr.vector("ptr", slopes.size() + 1), ends = others.vector("others");
            check_range("ptr", begins, 0, static_cast<std::int64_t>(ends.size()));
            check_range("others", ends, 0, static_cast<std::int64_t>(slopes.size()) - 1);
            const Released released;
            fractal_dimensions(begins, ends, slopes);
        },
        "ptr"_a, "others"_a, "dimension"_a);
}

}  // namespace

void bind_policies(nb::module_& module) {
    bind_doppler(module);
    bind_giph(module);
    bind_message_passing<float>(module, "pass_forward_float32", "pass_backward_float32");
    bind_message_passing<double>(module, "pass_forward_float64", "pass_backward_float64");
    bind_hsdag(module);
}

}  // namespace placeit
