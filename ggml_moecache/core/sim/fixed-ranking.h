// Static policies at every capacity in one pass: the depth of an expert is its place in the ranking of its budget.
#pragma once

#include "core/sim/engine.h"

#include <memory>
#include <vector>

namespace moecache {

// `ranking`: items, best first, each at most once. `geometry` must outlive the engine; its slots are the largest of the
// capacities.
std::unique_ptr<engine> make_fixed_ranking_engine(const cache_geometry &        geometry,
                                                  const std::vector<uint32_t> & ranking);

} // namespace moecache
