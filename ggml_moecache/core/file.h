// Files that are replaced as a whole: a reader sees the old contents or the new ones, never a part.
#pragma once

#include <string>

namespace moecache {

// Write `text` beside `path` and rename it over it. Returns "" or "cannot write <path>: <why>".
std::string file_replace(const std::string & path, const std::string & text);

} // namespace moecache
