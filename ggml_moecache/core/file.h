// Files that are replaced as a whole: a reader sees the old contents or the new ones, never a part.
#pragma once

#include <csignal>
#include <string>

namespace moecache {

// While it lives, a write of this thread that the system refuses with a signal (SIGXFSZ: a limit on the size of files;
// SIGPIPE: nobody reads) fails with an error instead, and does not end the program.
class write_signals_blocked {
public:
    write_signals_blocked();
    ~write_signals_blocked();
    write_signals_blocked(const write_signals_blocked &)             = delete;
    write_signals_blocked & operator=(const write_signals_blocked &) = delete;

private:
    sigset_t ours;   // blocked by this object
    sigset_t before; // the thread's mask
};

// Write `text` beside `path` and rename it over it. Returns "" or "cannot write <path>: <why>".
std::string file_replace(const std::string & path, const std::string & text);

// Whether file_replace() could write there now, as far as can be seen without writing. Returns "" or its message.
std::string file_refused(const std::string & path);

} // namespace moecache
