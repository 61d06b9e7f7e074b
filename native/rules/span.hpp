// Views of arrays that they do not own, as later std::span and std::mdspan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace placeit {

/// A view of contiguous values.
template <class T>
class Span {
public:
    Span() = default;
    Span(T* data, std::size_t size) : data_(data), size_(size) {}
    template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
    Span(Span<U> other) : data_(other.data()), size_(other.size()) {}
    template <class U>
    Span(std::vector<U>& owner) : data_(owner.data()), size_(owner.size()) {}
    template <class U>
    Span(const std::vector<U>& owner) : data_(owner.data()), size_(owner.size()) {}

    T& operator[](std::size_t i) const { return data_[i]; }
    T* data() const { return data_; }
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    T* begin() const { return data_; }
    T* end() const { return data_ + size_; }
    Span first(std::size_t count) const { return {data_, count}; }

private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

/// A view of a matrix, row by row.
template <class T>
class Grid {
public:
    Grid() = default;
    Grid(T* data, std::size_t rows, std::size_t columns) : data_(data), rows_(rows), columns_(columns) {}
    template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
    Grid(Grid<U> other) : data_(other.data()), rows_(other.rows()), columns_(other.columns()) {}

    T& operator()(std::size_t row, std::size_t column) const { return data_[row * columns_ + column]; }
    Span<T> row(std::size_t i) const { return {data_ + i * columns_, columns_}; }
    Span<T> all() const { return {data_, rows_ * columns_}; }
    T* data() const { return data_; }
    T* begin() const { return data_; }
    T* end() const { return data_ + rows_ * columns_; }
    std::size_t rows() const { return rows_; }
    std::size_t columns() const { return columns_; }
    bool empty() const { return rows_ * columns_ == 0; }

private:
    T* data_ = nullptr;
    std::size_t rows_ = 0, columns_ = 0;
};

/// A matrix that owns its values.
template <class T>
class Matrix {
public:
    Matrix() = default;
    Matrix(std::size_t rows, std::size_t columns, T value = T{})
        : rows_(rows), columns_(columns), values_(rows * columns, value) {}

    T& operator()(std::size_t row, std::size_t column) { return values_[row * columns_ + column]; }
    const T& operator()(std::size_t row, std::size_t column) const { return values_[row * columns_ + column]; }
    std::size_t rows() const { return rows_; }
    std::size_t columns() const { return columns_; }
    bool empty() const { return values_.empty(); }
    Span<T> row(std::size_t i) { return {values_.data() + i * columns_, columns_}; }
    Span<const T> row(std::size_t i) const { return {values_.data() + i * columns_, columns_}; }
    std::vector<T>& values() { return values_; }
    const std::vector<T>& values() const { return values_; }
    operator Grid<T>() { return {values_.data(), rows_, columns_}; }
    operator Grid<const T>() const { return {values_.data(), rows_, columns_}; }

private:
    std::size_t rows_ = 0, columns_ = 0;
    std::vector<T> values_;
};

/// Copies the values of a view.
template <class T>
std::vector<std::remove_const_t<T>> copy(Span<T> values) {
    return {values.begin(), values.end()};
}

template <class T>
Matrix<std::remove_const_t<T>> copy(Grid<T> values) {
    Matrix<std::remove_const_t<T>> copied(values.rows(), values.columns());
    std::copy_n(values.data(), values.rows() * values.columns(), copied.values().begin());
    return copied;
}

using Flag = std::uint8_t;  // a truth value in an array: std::vector<bool> has no addresses

}  // namespace placeit
