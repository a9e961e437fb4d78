// What the files of the module share: the event stream that Python holds, and arrays in and out.
#pragma once

#include "core/sim/event-stream.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

// The event stream together with the columns that its items are numbered by.
struct bound_stream {
    std::vector<moecache::column_info> columns;
    moecache::event_stream             stream;
};
