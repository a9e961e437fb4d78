#include "core/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <unistd.h>

namespace moecache {

std::string file_replace(const std::string & path, const std::string & text) {
    const std::string temporary = path + ".tmp" + std::to_string(getpid());
    std::FILE *       file      = std::fopen(temporary.c_str(), "w");
    if (file == nullptr) {
        return "cannot write " + path + ": " + std::strerror(errno);
    }
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    const bool stored  = std::fclose(file) == 0 && written && std::rename(temporary.c_str(), path.c_str()) == 0;
    if (!stored) {
        const std::string error = "cannot write " + path + ": " + std::strerror(errno);
        std::remove(temporary.c_str());
        return error;
    }
    return "";
}

} // namespace moecache
