// The C++ tests' own harness: TEST(name) { ... } registers a test, CHECK and CHECK_EQ record failures with file, line
// and values, and main() runs everything and prints one line per failure. A test file is one executable; ctest runs
// them.
#pragma once

#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct test {
    const char *          name;
    std::function<void()> run;
};

inline std::vector<test> & tests() {
    static std::vector<test> list;
    return list;
}

inline int & n_failures() {
    static int n = 0;
    return n;
}

struct registration {
    registration(const char * name, std::function<void()> run) { tests().push_back({ name, std::move(run) }); }
};

inline void fail(const char * file, int line, const std::string & what) {
    std::printf("%s:%d: %s\n", file, line, what.c_str());
    n_failures()++;
}

template <typename A, typename B>
std::string values(const A & a, const B & b) {
    std::ostringstream text;
    text << "got " << a << ", expected " << b;
    return text.str();
}

template <typename A, typename B>
void equal(const char * file, int line, const char * what, const A & a, const B & b) {
    if (!(a == b)) {
        fail(file, line, std::string(what) + ": " + values(a, b));
    }
}

} // namespace check

#define TEST(name)                                                                                                     \
    static void                name();                                                                                 \
    static check::registration name##_registration(#name, name);                                                       \
    static void                name()

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            check::fail(__FILE__, __LINE__, "not true: " #condition);                                                  \
        }                                                                                                              \
    } while (false)

#define CHECK_EQ(actual, expected) check::equal(__FILE__, __LINE__, #actual, actual, expected)

int main() {
    for (const check::test & test : check::tests()) {
        const int before = check::n_failures();
        test.run();
        std::printf("%s %s\n", check::n_failures() == before ? "ok  " : "FAIL", test.name);
    }
    std::printf("%zu tests, %d failed checks\n", check::tests().size(), check::n_failures());
    return check::n_failures() == 0 && !check::tests().empty() ? 0 : 1;
}
