// NumPy arrays as arguments: any object is taken, and checked once, with an error that names the argument.
#pragma once

#include <nanobind/nanobind.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// The name of a value's type in NumPy, and the characters that buffers (PEP 3118) use for it.
template <class T>
struct DataType;
template <>
struct DataType<double> {
    static constexpr auto name = nanobind::detail::const_name("float64");
    static constexpr std::string_view formats = "d";
};
template <>
struct DataType<float> {
    static constexpr auto name = nanobind::detail::const_name("float32");
    static constexpr std::string_view formats = "f";
};
template <>
struct DataType<std::int32_t> {
    static constexpr auto name = nanobind::detail::const_name("int32");
    static constexpr std::string_view formats = "i";
};
template <>
struct DataType<std::int64_t> {
    static constexpr auto name = nanobind::detail::const_name("int64");
    static constexpr std::string_view formats = "lq";
};
template <>
struct DataType<std::uint64_t> {
    static constexpr auto name = nanobind::detail::const_name("uint64");
    static constexpr std::string_view formats = "LQ";
};
template <>
struct DataType<Flag> {
    static constexpr auto name = nanobind::detail::const_name("bool");
    static constexpr std::string_view formats = "?";
};

/// An array argument of a binding. Its memory stays where it is for the whole call, also without the GIL.
///
/// Array<const T> takes read-only arrays, too. Nothing is converted: another type, order or stride is an error.
template <class T>
class Array {
public:
    using Value = std::remove_const_t<T>;

    Array() = default;
    explicit Array(nanobind::handle object) {
        held_ = PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_FORMAT | PyBUF_STRIDES) == 0;
        if (!held_) PyErr_Clear();
    }
    Array(Array&& other) noexcept { *this = std::move(other); }
    Array& operator=(Array&& other) noexcept {
        std::swap(buffer_, other.buffer_);
        std::swap(held_, other.held_);
        return *this;
    }
    ~Array() {
        if (held_) PyBuffer_Release(&buffer_);
    }

    /// The values of an array of one dimension. `name`: of the argument, for errors; `size`: as many as there must be.
    Span<T> vector(const char* name, std::optional<std::size_t> size = {}) const {
        check(name, 1);
        if (size && *size != extent(0)) {
            fail(name, "has " + std::to_string(extent(0)) + " values; expected " + std::to_string(*size));
        }
        return {static_cast<T*>(buffer_.buf), extent(0)};
    }

    /// The values of an array of two dimensions.
    Grid<T> grid(const char* name, std::optional<std::size_t> rows = {}, std::optional<std::size_t> columns = {}) const {
        check(name, 2);
        if ((rows && *rows != extent(0)) || (columns && *columns != extent(1))) {
            const auto wanted = [](std::optional<std::size_t> n) { return n ? std::to_string(*n) : std::string("any"); };
            fail(name, "has shape (" + std::to_string(extent(0)) + ", " + std::to_string(extent(1)) + "); expected (" +
                           wanted(rows) + ", " + wanted(columns) + ")");
        }
        return {static_cast<T*>(buffer_.buf), extent(0), extent(1)};
    }

    /// The values of an array of the given shape, of two dimensions or more; the last dimension has the columns.
    Grid<T> rows(const char* name, std::initializer_list<std::size_t> shape) const {
        check(name, static_cast<int>(shape.size()));
        std::size_t rows = 1;
        int axis = 0;
        for (const std::size_t size : shape) {
            if (extent(axis) != size) {
                fail(name, "has size " + std::to_string(extent(axis)) + " along axis " + std::to_string(axis) + "; expected " +
                               std::to_string(size));
            }
            if (++axis < buffer_.ndim) rows *= size;
        }
        return {static_cast<T*>(buffer_.buf), rows, extent(axis - 1)};
    }

private:
    std::size_t extent(int axis) const { return static_cast<std::size_t>(buffer_.shape[axis]); }

    [[noreturn]] static void fail(const char* name, const std::string& what) {
        throw nanobind::value_error(("'" + std::string(name) + "' " + what + ".").c_str());
    }

    void check(const char* name, int dimensions) const {
        const std::string wanted = DataType<Value>::name.text;
        const std::string_view format = held_ && buffer_.format ? buffer_.format : "";
        if (!held_ || format.size() != 1 || DataType<Value>::formats.find(format[0]) == std::string_view::npos ||
            buffer_.itemsize != static_cast<Py_ssize_t>(sizeof(T))) {
            const std::string got = held_ ? "one of buffer format '" + std::string(format) + "'" : "no array";
            throw nanobind::type_error(
                ("'" + std::string(name) + "' must be an array of " + wanted + "; got " + got + ".").c_str());
        }
        if (buffer_.ndim != dimensions) {
            fail(name, "has " + std::to_string(buffer_.ndim) + " dimensions; expected " + std::to_string(dimensions));
        }
        if (!PyBuffer_IsContiguous(&buffer_, 'C')) fail(name, "must be contiguous, row by row");
        if (reinterpret_cast<std::uintptr_t>(buffer_.buf) % alignof(T) != 0) fail(name, "is not aligned");
        if (!std::is_const_v<T> && buffer_.readonly) fail(name, "is read-only and has to be written to");
    }

    Py_buffer buffer_{};
    bool held_ = false;
};

/// Checks that a number is from 0 to `size` - 1. Throws an IndexError that names the argument.
inline void check_index(const char* name, std::int64_t index, std::int64_t size) {
    if (index < 0 || index >= size) {
        throw nanobind::index_error(("'" + std::string(name) + "' is " + std::to_string(index) + "; it must be from 0 to " +
                                     std::to_string(size - 1) + ".")
                                        .c_str());
    }
}

/// Checks that all numbers are from `low` to `high`, both included. Throws a ValueError that names the argument.
template <class T>
void check_range(const char* name, Span<T> values, std::int64_t low, std::int64_t high) {
    for (const auto value : values) {
        if (value < low || value > high) {
            throw nanobind::value_error(("'" + std::string(name) + "' holds " + std::to_string(value) + "; it must be from " +
                                         std::to_string(low) + " to " + std::to_string(high) + ".")
                                            .c_str());
        }
    }
}

constexpr double MOST = 1e100;  // of numbers that must be finite: their sums and products do not overflow

/// Checks that no number is NaN, less than `least` or more than 1e100; infinite ones are allowed if `most` is infinity. Throws
/// a ValueError that names the argument.
template <class View>
View amounts(const char* name, View values, double most = MOST, double least = 0.0) {
    for (const double value : values) {
        if (value >= least && (value <= MOST || value == most)) continue;
        char text[100];
        std::snprintf(text, sizeof text, "' holds %g; it must be from %g to %g%s.", value, least, MOST,
                      most == infinity ? ", or infinite" : "");
        throw nanobind::value_error(("'" + std::string(name) + text).c_str());
    }
    return values;
}
/// Checks that all numbers, of bytes per second, are positive; infinite ones are allowed.
template <class View>
View rates(const char* name, View values) {
    return amounts(name, values, infinity, 1.0 / MOST);
}
inline double amount(const char* name, double value, double most = MOST, double least = 0.0) {
    return amounts(name, Span<const double>(&value, 1), most, least)[0];
}

/// Checks that a number is not NaN. Throws a ValueError that names the argument.
template <class View>
View ordered(const char* name, View values) {
    for (const double value : values) {
        if (std::isnan(value)) throw nanobind::value_error(("'" + std::string(name) + "' holds NaN.").c_str());
    }
    return values;
}

/// A placement of a problem: a device that exists for every op.
inline Span<const std::int32_t> placement_of(const Tables& tables, const Array<const std::int32_t>& place,
                                             const char* name = "place") {
    const auto checked = place.vector(name, tables.compute.rows());
    check_range(name, checked, 0, tables.devices() - 1);
    return checked;
}

}  // namespace placeit

namespace nanobind::detail {

template <class T>
struct type_caster<placeit::Array<T>> {
    using Value = placeit::Array<T>;
    static constexpr auto Name =
        const_name("numpy.typing.NDArray[numpy.") + placeit::DataType<std::remove_const_t<T>>::name + const_name("]");
    template <class>
    using Cast = Value&;
    Value value;

    bool from_python(handle object, std::uint8_t, cleanup_list*) noexcept {
        value = Value(object);
        return true;
    }
    template <class>
    bool can_cast() const noexcept {
        return true;
    }
    explicit operator Value&() { return value; }
    explicit operator Value*() { return &value; }
};

}  // namespace nanobind::detail
