// What several files of the module pass between C++ and Python: arrays, columns, errors.
#pragma once

#include "core/cache-geometry.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace moecache {

template <class T>
using input = nanobind::ndarray<const T, nanobind::numpy, nanobind::c_contig, nanobind::device::cpu>;

// A numpy array that owns the vector's memory.
template <class T>
nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>> array_of(std::vector<T> values) {
    auto *                  owned = new std::vector<T>(std::move(values));
    const nanobind::capsule owner(owned, [](void * p) noexcept { delete static_cast<std::vector<T> *>(p); });
    return { owned->data(), { owned->size() }, owner };
}

inline void require(const std::string & error) {
    if (!error.empty()) {
        throw std::invalid_argument(error); // ValueError
    }
}

using column_tuple = std::tuple<int32_t, std::string, uint32_t, uint64_t>;

inline std::vector<column_info> columns_of(const std::vector<column_tuple> & columns) {
    std::vector<column_info> result;
    for (const auto & [layer, family, n_experts, bytes] : columns) {
        result.push_back({ layer, family, n_experts, bytes });
    }
    return result;
}

} // namespace moecache
