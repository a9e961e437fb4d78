// MOECACHE_REQUIRE=1 where no computation is left that could fail, or whose program does not care that one has failed
// (llama-perplexity, llama-server): the status that the process ends with has to tell.
#pragma once

namespace moecache {

// Something was not as required. Any thread.
void requirement_missed();

// Whether the process must not end with status 0: the variable is set, and something was missed.
bool requirement_unmet();

} // namespace moecache
