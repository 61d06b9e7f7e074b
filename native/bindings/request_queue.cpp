#include "executor/request_queue.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/plan_executor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

constexpr std::size_t large = std::size_t{1} << 18U;  // bytes from which on other Python threads run while they are copied

/// Returns the memory of arrays, which Python keeps alive.
std::vector<Memory> memory(const nb::sequence& arrays, bool written) {
    std::vector<Memory> found;
    for (const nb::handle array : arrays) {
        Py_buffer view;
        if (PyObject_GetBuffer(array.ptr(), &view, written ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) throw nb::python_error();
        found.push_back({static_cast<std::byte*>(view.buf), static_cast<std::size_t>(view.len)});
        PyBuffer_Release(&view);
    }
    return found;
}

}  // namespace

void bind_request_queue(nb::module_& module) {
    nb::enum_<State>(module, "State", "State of a request of a queue.")
        .value("outside", State::outside)
        .value("waiting", State::waiting)
        .value("flying", State::flying)
        .value("ended", State::ended)
        .value("expired", State::expired)
        .value("cancelled", State::cancelled);

    // it is not stored in the Python object: threads without the interpreter's lock may be the last ones to refer to it
    nb::class_<Submission>(module, "Submission", "A request of a queue.")
        .def(nb::new_([](const nb::typed<nb::sequence, nb::object>& inputs, const nb::typed<nb::sequence, nb::object>& outputs,
                         double deadline, std::int64_t priority) {
                 if (std::isnan(deadline)) throw nb::value_error("'deadline' must not be NaN.");
                 return std::make_shared<Submission>(Tensors{memory(inputs, false), memory(outputs, true)}, deadline, priority);
             }),
             "inputs"_a, "outputs"_a, "deadline"_a, "priority"_a = 0,
             "'inputs' and 'outputs': contiguous arrays, to be kept by the caller until it is acknowledged. 'priority': "
             "requests "
             "of a lower number begin first.")
        .def_prop_ro("state", [](const Submission& one) { return one.state.load(); })
        .def_prop_ro("acknowledged", [](const Submission& one) { return one.acknowledged.load(); })
        .def_ro("replica", &Submission::replica)
        .def_ro("slot", &Submission::slot)
        .def_ro("number", &Submission::number, "Number among the requests that began.")
        .def_ro("alone", &Submission::alone, "Whether no other request was in flight at the same time.")
        .def_ro("begun", &Submission::begun, "Seconds, by time.perf_counter.")
        .def_ro("ended", &Submission::ended, "Seconds, by time.perf_counter.")
        .def(
            "ran",
            [](const Submission& one) {
                nb::list found;
                for (const Ran& ran : one.ran) found.append(nb::make_tuple(ran.node, ran.start, ran.finish));
                return found;
            },
            nb::sig("def ran(self) -> list[tuple[int, float, float]]"),
            "Return node, start and finish of each node that ran, by start; for a request that has ended.");

    nb::class_<RequestQueue>(module, "RequestQueue",
                             "The requests of a server that need no Python from their submission to their end.")
        .def(nb::new_([] { return std::make_shared<RequestQueue>(); }))
        .def(
            "add",
            [](RequestQueue& queue, PlanExecutor& executor, const nb::typed<nb::sequence, nb::object>& slots,
               std::shared_ptr<Bell> bell, std::int64_t every) {
                std::vector<Tensors> tensors;
                for (const nb::handle slot : slots) {
                    const auto pair = nb::cast<nb::tuple>(slot);
                    tensors.push_back(
                        {memory(nb::cast<nb::sequence>(pair[0]), true), memory(nb::cast<nb::sequence>(pair[1]), false)});
                }
                if (tensors.empty() || static_cast<Index>(tensors.size()) > executor.slots()) {
                    throw nb::value_error("'slots' must hold the memory of the first slots of the executor.");
                }
                return queue.add(executor, std::move(tensors), std::move(bell), every);
            },
            "executor"_a, "slots"_a, "bell"_a, "every"_a,
            "Add a replica, and return its number. 'slots': (inputs, outputs) of each slot, arrays that are kept by the "
            "caller,\n"
            "as the executor is. 'every': for a candidate, which takes one request in 'every', one at a time; else 0.")
        .def("open", &RequestQueue::open, "replica"_a,
             "Have the executor of a replica begin a run, and the replica take requests.")
        .def("close", &RequestQueue::close, nb::call_guard<Released>(), "replica"_a, "Have a replica take no more requests.")
        .def("retire", &RequestQueue::retire, "replica"_a,
             "Have a replica take no more requests; return whether none is in flight there.")
        .def("adopt", &RequestQueue::adopt, "replica"_a, "Have a candidate take as many requests as any other replica.")
        .def("again", &RequestQueue::again, "replica"_a,
             "Have the requests in flight on a closed replica, whose run is over, wait again.")
        .def(
            "put",
            [](RequestQueue& queue, const RequestQueue::One& submission) {
                std::size_t bytes = 0;
                for (const Memory& input : submission->tensors.inputs) bytes += input.bytes;
                std::optional<Released> released;  // the interpreter's lock, while they are copied
                if (bytes >= large) released.emplace();
                return queue.put(submission);
            },
            "submission"_a,
            "Have a request wait, and begin as soon as it can; return whether no other one has an earlier deadline.")
        .def("cancel", &RequestQueue::cancel, "submission"_a, "Take a waiting request out; return whether it is cancelled.")
        .def(
            "watch", [](RequestQueue& queue, Submission& submission) { queue.watch(submission); }, "submission"_a,
            "Have a replica's thread handle the end of a request as soon as it is over.")
        .def(
            "wait",
            [](RequestQueue& queue, Submission& submission, double until) {
                if (std::isnan(until)) throw nb::value_error("'until' must not be NaN.");
                if (submission.over()) return true;
                const Released unheld(exiting);
                return queue.wait(submission, until, look);
            },
            "submission"_a, "until"_a, "Wait for the end of a request; return whether it is over.")
        .def("over", &RequestQueue::over, "due"_a,
             "Return the requests that are over and not acknowledged; 'due': only ones that no other thread handles.")
        .def("acknowledge", &RequestQueue::acknowledge, "submission"_a, "Record that the end of a request was handled.")
        .def("expire", &RequestQueue::expire, "Take waiting requests out whose deadline is over; return the next deadline.")
        .def("withdraw", &RequestQueue::withdraw, "Take out all waiting requests, and return them.")
        .def("flying", &RequestQueue::flying, "Return the requests in flight.")
        .def("in_slot", &RequestQueue::in_slot, "replica"_a, "slot"_a,
             nb::sig("def in_slot(self, replica: int, slot: int) -> Submission | None"),
             "Return the request in flight in a slot, or None.")
        .def("drop", &RequestQueue::drop, nb::call_guard<Released>(), "replica"_a, "slot"_a,
             "Take the request in a slot out, as it has failed or was given up.")
        .def("reserve", &RequestQueue::reserve, "replica"_a,
             "Take a slot for a request that Python begins; -1 if none is free.")
        .def("release", &RequestQueue::release, "replica"_a, "slot"_a, "Give a slot back that was reserved.")
        .def("in_flight", &RequestQueue::in_flight, "replica"_a, "Return how many slots of a replica are taken.")
        .def("enter", &RequestQueue::enter, "Count a request that Python begins, and return its number.")
        .def("exit", &RequestQueue::exit)
        .def("tell_all", &RequestQueue::tell_all, "Have the bells ring for every request that ends.")
        .def(
            "wait_for_room",
            [](RequestQueue& queue, std::uint32_t seen, double until) {
                const Released unheld(exiting);
                queue.room.wait(seen, until);
            },
            "seen"_a, "until"_a, "Wait until 'room' is not 'seen', or a signal comes.")
        .def("make_room", [](RequestQueue& queue) { queue.room.raise(); })
        .def_prop_ro(
            "room", [](const RequestQueue& queue) { return queue.room.count(); }, "Counter, raised when a request leaves.")
        .def_prop_ro("begun", &RequestQueue::begun)
        .def_prop_ro("waiting", &RequestQueue::waiting);
}

}  // namespace placeit
