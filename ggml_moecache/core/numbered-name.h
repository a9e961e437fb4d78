// File names that several contexts of the process share: the first that is open takes NAME, the next NAME.1, and so on.
// A number is free again when its holder is gone.
#pragma once

#include <string>

namespace moecache {

class numbered_name {
public:
    explicit numbered_name(const std::string & key); // takes the lowest free number of `key`
    ~numbered_name();
    numbered_name(const numbered_name &)             = delete;
    numbered_name & operator=(const numbered_name &) = delete;

    // `name` with the number; "" stays "".
    std::string apply(const std::string & name) const;

private:
    std::string key;
    int         number = 0;
};

} // namespace moecache
