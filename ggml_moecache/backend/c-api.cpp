#include "core/config.h"
#include "core/status.h"
#include "ggml-moecache.h"

#include <algorithm>
#include <cstring>

using namespace moecache;

const char * moecache_version(void) {
    return MOECACHE_VERSION;
}

const char * moecache_ggml_version(void) {
    return MOECACHE_GGML_VERSION;
}

const char * moecache_config_set(const char * name, const char * value) {
    static thread_local std::string error;
    error = config_set(name, value);
    return error.empty() ? nullptr : error.c_str();
}

const char * moecache_config_get(const char * name) {
    static thread_local std::string value;
    size_t                          n     = 0;
    const variable_info *           table = variable_table(n);
    const bool known = name != nullptr && std::any_of(table, table + n, [name](const variable_info & info) {
                           return std::strcmp(info.name, name) == 0;
                       });
    if (!known) {
        return nullptr;
    }
    value = config_get(name);
    return value.c_str();
}

size_t moecache_status_json(char * buffer, size_t size) {
    const std::string text = status_json();
    if (buffer != nullptr && size > 0) {
        const size_t n = std::min(size - 1, text.size());
        std::memcpy(buffer, text.data(), n);
        buffer[n] = '\0';
    }
    return text.size() + 1;
}
