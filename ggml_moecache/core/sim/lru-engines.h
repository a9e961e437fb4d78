// lru without options, exactly: at one capacity by a moving threshold, at all capacities by stack distances.
#pragma once

#include "core/sim/engine.h"

#include <memory>

namespace moecache {

// `geometry` must outlive it; its slots are the largest of the capacities.
std::unique_ptr<engine> make_lru_engine(const cache_geometry & geometry, size_t n_capacities);

} // namespace moecache
