// A ranking of experts in a file: CSV with the header `layer,expert` or `layer,family,expert`, then one expert per
// line, best first. Without the column family an expert is of the family exps. Blank lines and lines that begin with #
// are skipped.
#pragma once

#include "core/cache-geometry.h"

#include <string>
#include <vector>

namespace moecache {

// The items that `path` names. Returns "" or a message with file, line and reason: an expert that the geometry does not
// have, one named twice, or a line of another form.
std::string read_expert_list(const std::string & path, const cache_geometry & geometry, std::vector<uint32_t> & items);

} // namespace moecache
