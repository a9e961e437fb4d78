#include "core/requirement.h"

#include "core/config.h"

#include <atomic>

namespace moecache {

static std::atomic<bool> missed { false };

void requirement_missed() {
    missed = true;
}

bool requirement_unmet() {
    return missed &&
           config_get("MOECACHE_REQUIRE") != "0"; // nor is a value that the variable does not take a wish to go on
}

} // namespace moecache
