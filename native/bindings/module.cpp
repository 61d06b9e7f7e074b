// placeit._core: the compiled parts of searches, simulators and executors.
#include <nanobind/nanobind.h>

namespace placeit {

void bind_arena(nanobind::module_& module);
void bind_compiled_program(nanobind::module_& module);
void bind_executor(nanobind::module_& module);
void bind_request_queue(nanobind::module_& module);
void bind_machine(nanobind::module_& module);
void bind_enumeration(nanobind::module_& module);
void bind_planning(nanobind::module_& module);
void bind_placers(nanobind::module_& module);
void bind_policies(nanobind::module_& module);
void bind_rules(nanobind::module_& module);
void bind_simulator(nanobind::module_& module);

}  // namespace placeit

NB_MODULE(_core, module) {
    nanobind::set_leak_warnings(false);  // objects in Python's own caches at exit are not leaks
    module.doc() = "Compiled parts of placeit: rules of execution and simulators.";
    placeit::bind_rules(module);
    placeit::bind_machine(module);
    placeit::bind_planning(module);
    placeit::bind_enumeration(module);
    placeit::bind_simulator(module);
    placeit::bind_executor(module);
    placeit::bind_request_queue(module);
    placeit::bind_arena(module);
    placeit::bind_compiled_program(module);
    placeit::bind_placers(module);
    placeit::bind_policies(module);
}
