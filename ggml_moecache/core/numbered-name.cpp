#include "core/numbered-name.h"

#include <map>
#include <mutex>
#include <set>

namespace moecache {

static std::mutex & names_mutex() {
    static auto * mutex = new std::mutex; // never destroyed: contexts may outlive static objects
    return *mutex;
}

static std::map<std::string, std::set<int>> & taken() {
    static auto * map = new std::map<std::string, std::set<int>>;
    return *map;
}

numbered_name::numbered_name(const std::string & k) : key(k) {
    std::lock_guard<std::mutex> lock(names_mutex());
    std::set<int> &             numbers = taken()[key];
    while (!numbers.insert(number).second) {
        number++;
    }
}

numbered_name::~numbered_name() {
    std::lock_guard<std::mutex> lock(names_mutex());
    taken()[key].erase(number);
}

std::string numbered_name::apply(const std::string & name) const {
    return name.empty() || number == 0 ? name : name + "." + std::to_string(number);
}

} // namespace moecache
