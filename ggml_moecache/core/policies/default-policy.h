// The policy that a runtime takes when nothing is said: what the decision in traces/decision recommends. A test
// compares the two. Settings, their documentation and the bindings take it from here.
#pragma once

namespace moecache {

inline constexpr const char * default_policy = "decayed-lfu";

} // namespace moecache
