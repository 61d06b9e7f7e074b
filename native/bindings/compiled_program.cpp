#include "executor/compiled_program.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/lock.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

using Described = std::tuple<std::uintptr_t, std::string, std::vector<std::int64_t>>;

std::vector<HostTensor> tensors(const CompiledProgram& program, const std::vector<Described>& described) {
    std::vector<HostTensor> found;
    found.reserve(described.size());
    for (const auto& [address, type, sizes] : described) {
        found.push_back({reinterpret_cast<void*>(address), program.type(type), sizes});
    }
    return found;
}

}  // namespace

void bind_compiled_program(nb::module_& module) {
    nb::class_<CompiledProgram>(module, "CompiledProgram", "A library with a program that AOTInductor has compiled.")
        .def(nb::new_([](const std::string& path) {
                 const Released no_gil;
                 return std::make_shared<CompiledProgram>(path);
             }),
             "path"_a, "Load a library. Raises RuntimeError.");

    nb::class_<CompiledInstance>(module, "CompiledInstance", "A compiled program with the memory that it reads and writes.")
        .def(
            nb::new_([](std::shared_ptr<CompiledProgram> program, const std::vector<Described>& inputs,
                        const std::vector<Described>& outputs) {
                auto read = tensors(*program, inputs), written = tensors(*program, outputs);
                return std::make_shared<CompiledInstance>(std::move(program), std::move(read), std::move(written));
            }),
            "program"_a, "inputs"_a, "outputs"_a,
            "Each tensor, contiguous, is the address of its memory, which the caller keeps alive, its type, such as 'float32', "
            "and\nits sizes.")
        .def(
            "read",
            [](CompiledInstance& instance, std::size_t index, std::uintptr_t address) {
                instance.read(index, reinterpret_cast<void*>(address));
            },
            "index"_a, "address"_a, "Read an input from other memory in later runs.")
        .def_prop_ro(
            "entry",
            [](CompiledInstance& instance) {
                return std::pair(reinterpret_cast<std::uintptr_t>(&run_compiled), reinterpret_cast<std::uintptr_t>(&instance));
            },
            "Addresses of the function that runs it, and of its argument.");
}

}  // namespace placeit
