// MOECACHE_REQUIRE=1 where no computation is left that could fail: the end of the process has to tell.
#pragma once

namespace moecache {

// Something was not as required, and the program cannot be told any more. Any thread.
void requirement_missed();

// Whether the process must not end with status 0: the variable is set, and something was missed.
bool requirement_unmet();

} // namespace moecache
