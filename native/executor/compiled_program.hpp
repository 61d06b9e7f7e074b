// Programs that PyTorch's AOTInductor has compiled, run through their C interface without Python.
//
// Their functions, and the ones of PyTorch, are found by name, so that nothing here links PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace placeit {

/// A shared library with a compiled program, and the program's weights.
class CompiledProgram {
public:
    using Handle = void*;  // of a tensor of PyTorch, or of a program

    /// Loads a library. Throws std::runtime_error if that fails, or if it lacks a function.
    explicit CompiledProgram(const std::string& path);
    CompiledProgram(const CompiledProgram&) = delete;
    CompiledProgram& operator=(const CompiledProgram&) = delete;
    ~CompiledProgram();

    /// Returns PyTorch's number of a type, such as `float32`. Throws std::runtime_error if it has no such type.
    std::int32_t type(const std::string& name) const;

private:
    friend class CompiledInstance;

    template <typename Function>
    void find(Function*& function, const char* name) const;

    void* library_;
    Handle program_ = nullptr;
    int (*make_)(Handle*, std::size_t, const char*, const char*) = nullptr;
    int (*free_)(Handle) = nullptr;
    int (*run_)(Handle, Handle*, std::size_t, Handle*, std::size_t, void*, void*) = nullptr;
    int (*tensor_)(void*, std::int64_t, const std::int64_t*, const std::int64_t*, std::int64_t, std::int32_t, std::int32_t,
                   std::int32_t, Handle*) = nullptr;
    int (*copy_)(Handle, Handle, std::int32_t) = nullptr;
    int (*drop_)(Handle) = nullptr;
};

/// A tensor in memory of the host, contiguous.
struct HostTensor {
    void* data;
    std::int32_t type;
    std::vector<std::int64_t> sizes;
};

/// A compiled program with the memory that it reads and writes.
class CompiledInstance {
public:
    CompiledInstance(std::shared_ptr<CompiledProgram> program, std::vector<HostTensor> inputs, std::vector<HostTensor> outputs);

    /// Has later runs read an input from other memory.
    void read(std::size_t index, void* data) { inputs_.at(index).data = data; }

    /// Runs the program; returns 0, or another number if that fails.
    int run();

private:
    int wrapped(const HostTensor& tensor, CompiledProgram::Handle& made) const;

    std::shared_ptr<CompiledProgram> program_;
    std::vector<HostTensor> inputs_, outputs_;
    std::vector<CompiledProgram::Handle> given_, made_;
};

/// An entry whose argument is a `CompiledInstance`.
int run_compiled(void* instance);

}  // namespace placeit
