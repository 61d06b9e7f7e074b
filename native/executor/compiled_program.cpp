#include "executor/compiled_program.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace placeit {

namespace {

constexpr std::int32_t cpu = 0;        // PyTorch's number of the CPU
constexpr std::int32_t no_index = -1;  // the CPU has no number among several
constexpr std::size_t one = 1;         // runs at a time

}  // namespace

CompiledProgram::CompiledProgram(const std::string& path) : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) throw std::runtime_error(dlerror());
    try {
        find(make_, "AOTInductorModelContainerCreateWithDevice");
        find(free_, "AOTInductorModelContainerDelete");
        find(run_, "AOTInductorModelContainerRun");
        find(tensor_, "aoti_torch_create_tensor_from_blob");
        find(copy_, "aoti_torch_copy_");
        find(drop_, "aoti_torch_delete_tensor_object");
        if (make_(&program_, one, "cpu", nullptr) != 0) throw std::runtime_error("its weights cannot be loaded");
    } catch (...) {
        dlclose(library_);
        throw;
    }
}

CompiledProgram::~CompiledProgram() {
    free_(program_);
    dlclose(library_);
}

template <typename Function>
void CompiledProgram::find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (!function) throw std::runtime_error(std::string("it has no function ") + name);
}

std::int32_t CompiledProgram::type(const std::string& name) const {
    std::int32_t (*number)() = nullptr;
    find(number, ("aoti_torch_dtype_" + name).c_str());
    return number();
}

CompiledInstance::CompiledInstance(std::shared_ptr<CompiledProgram> program, std::vector<HostTensor> inputs,
                                   std::vector<HostTensor> outputs)
    : program_(std::move(program)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      given_(inputs_.size()),
      made_(outputs_.size()) {}

int CompiledInstance::wrapped(const HostTensor& tensor, CompiledProgram::Handle& made) const {
    const auto& sizes = tensor.sizes;
    std::vector<std::int64_t> strides(sizes.size());
    std::int64_t stride = 1;
    for (std::size_t i = sizes.size(); i-- > 0; stride *= std::max<std::int64_t>(sizes[i], 1)) strides[i] = stride;
    return program_->tensor_(tensor.data, static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(), 0, tensor.type,
                             cpu, no_index, &made);
}

int CompiledInstance::run() {
    const CompiledProgram& program = *program_;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        if (const int status = wrapped(inputs_[i], given_[i]); status != 0) {
            while (i-- > 0) program.drop_(given_[i]);
            return status;
        }
    }
    // the inputs are the program's from here on
    int status = program.run_(program.program_, given_.data(), given_.size(), made_.data(), made_.size(), nullptr, nullptr);
    if (status != 0) return status;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        CompiledProgram::Handle to = nullptr;
        if (status == 0) status = wrapped(outputs_[i], to);
        if (status == 0) status = program.copy_(to, made_[i], 0);
        if (to) program.drop_(to);
        program.drop_(made_[i]);
    }
    return status;
}

int run_compiled(void* instance) {
    return static_cast<CompiledInstance*>(instance)->run();
}

}  // namespace placeit
