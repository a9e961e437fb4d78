#include "core/file.h"

#include "check.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <sys/resource.h>
#include <unistd.h>

using namespace moecache;

static std::string contents(const std::string & path) {
    std::ifstream     file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static bool is_blocked(int signal) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    return sigismember(&mask, signal) == 1;
}

// A limit on the length of files: the system sends SIGXFSZ, whose default is to end the program.
TEST(a_file_that_may_not_be_so_long_is_an_error_and_keeps_what_it_had) {
    char              name[] = "/tmp/moecache-file-XXXXXX";
    const std::string folder = mkdtemp(name);
    const std::string path   = folder + "/status.json";
    CHECK_EQ(file_replace(path, "before"), "");
    rlimit before {};
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit low   = before;
    low.rlim_cur = 100;
    setrlimit(RLIMIT_FSIZE, &low);
    const std::string error = file_replace(path, std::string(1000, 'x'));
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_EQ(error, "cannot write " + path + ": File too large");
    CHECK_EQ(contents(path), "before");
    CHECK_EQ(std::system(("rm " + path + " && rmdir " + folder).c_str()), 0); // nothing else is there
    CHECK(!is_blocked(SIGXFSZ));
}

// What is refused is what cannot be written, with the same words; nothing is made by asking.
TEST(what_cannot_be_written_is_refused_beforehand) {
    char              name[] = "/tmp/moecache-file-XXXXXX";
    const std::string folder = mkdtemp(name);
    const std::string file   = folder + "/file";
    CHECK_EQ(file_refused(file), "");
    CHECK(access(file.c_str(), F_OK) != 0);
    CHECK_EQ(file_replace(file, "before"), "");
    CHECK_EQ(file_refused(file), "");
    CHECK_EQ(symlink("file", (folder + "/link").c_str()), 0);
    CHECK_EQ(file_refused(folder + "/link"), "");
    for (const std::string & path : { folder, folder + "/none/file", file + "/under", std::string("/dev/full/x") }) {
        CHECK_EQ(file_refused(path), file_replace(path, "text"));
        CHECK(file_refused(path).find("cannot write " + path + ": ") == 0);
    }
    CHECK_EQ(file_refused(folder + "/none/"), "cannot write " + folder + "/none/: Is a directory");
    CHECK_EQ(file_refused(""), "cannot write : No such file or directory");
    CHECK_EQ(file_refused("/dev/null"), "");
    CHECK_EQ(contents(file), "before");
    CHECK_EQ(std::system(("rm " + file + " " + folder + "/link && rmdir " + folder).c_str()), 0);
}

TEST(signals_of_writing_are_as_before_when_the_guard_is_gone) {
    {
        const write_signals_blocked guard;
        CHECK(is_blocked(SIGXFSZ) && is_blocked(SIGPIPE));
        int ends[2];
        CHECK_EQ(pipe(ends), 0);
        close(ends[0]);
        CHECK_EQ(write(ends[1], "x", 1), -1);
        CHECK_EQ(errno, EPIPE);
        close(ends[1]);
    } // the signal that waits must not end this program
    CHECK(!is_blocked(SIGXFSZ) && !is_blocked(SIGPIPE));
}

TEST(a_signal_that_waited_before_is_left_alone) {
    sigset_t pipe_signal;
    sigset_t mask;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &mask);
    raise(SIGPIPE);
    { const write_signals_blocked guard; }
    sigset_t waiting;
    sigpending(&waiting);
    CHECK_EQ(sigismember(&waiting, SIGPIPE), 1);
    const timespec no_time {};
    CHECK_EQ(sigtimedwait(&pipe_signal, nullptr, &no_time), SIGPIPE);
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}
