#include "core/file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

namespace moecache {

write_signals_blocked::write_signals_blocked() {
    sigset_t waiting; // one that waits already is not ours to take
    sigpending(&waiting);
    sigemptyset(&ours);
    for (const int signal : { SIGXFSZ, SIGPIPE }) {
        if (sigismember(&waiting, signal) == 0) {
            sigaddset(&ours, signal);
        }
    }
    pthread_sigmask(SIG_BLOCK, &ours, &before);
}

write_signals_blocked::~write_signals_blocked() {
    const timespec no_time {};
    while (sigtimedwait(&ours, nullptr, &no_time) > 0) { // unblocked, what waits would be delivered after all
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

static std::string failure(const std::string & path, int error = errno) {
    return "cannot write " + path + ": " + std::strerror(error);
}

// A link stays a link: what it points to is replaced.
static std::string target_of(const std::string & path) {
    char *            real   = realpath(path.c_str(), nullptr);
    const std::string target = real != nullptr ? real : path;
    std::free(real);
    return target;
}

static bool write_all(const std::string & path, const std::string & text) {
    std::FILE * file = std::fopen(path.c_str(), "w");
    if (file == nullptr) {
        return false;
    }
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    return std::fclose(file) == 0 && written;
}

std::string file_replace(const std::string & path, const std::string & text) {
    const write_signals_blocked guard;
    struct stat                 info;
    const bool                  exists = stat(path.c_str(), &info) == 0;
    if (exists && !S_ISREG(info.st_mode)) { // a device or a pipe is written to, not replaced
        return write_all(path, text) ? "" : failure(path);
    }
    const std::string            target = exists ? target_of(path) : path;
    static std::atomic<unsigned> n_writes { 0 };
    const std::string temporary = target + ".tmp" + std::to_string(getpid()) + "-" + std::to_string(n_writes++);
    if (!write_all(temporary, text) || std::rename(temporary.c_str(), target.c_str()) != 0) {
        const std::string error = failure(path);
        std::remove(temporary.c_str());
        return error;
    }
    return "";
}

std::string file_refused(const std::string & path) {
    struct stat info;
    const bool  exists = stat(path.c_str(), &info) == 0;
    if (!exists && errno != ENOENT) {
        return failure(path);
    }
    if (exists && !S_ISREG(info.st_mode)) {
        return S_ISDIR(info.st_mode) ? failure(path, EISDIR) : access(path.c_str(), W_OK) == 0 ? "" : failure(path);
    }
    if (!exists && (path.empty() || path.back() == '/')) {
        return failure(path, path.empty() ? ENOENT : EISDIR);
    }
    const std::string target = exists ? target_of(path) : path;
    const size_t      slash  = target.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : target.substr(0, slash);
    return access(folder.c_str(), W_OK | X_OK) == 0 ? "" : failure(path);
}

} // namespace moecache
