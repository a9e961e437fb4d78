#include "core/expert-name.h"

#include <cstdlib>
#include <cstring>

namespace moecache {

static const char * const family_names[n_expert_families] = { "exps", "chexps" };

const char * expert_family_name(int family) {
    return family_names[family];
}

int expert_family_number(const std::string & name) {
    int family = 0;
    while (name != family_names[family]) {
        family++;
    }
    return family;
}

bool expert_name_parse(const char * name, expert_name & result) {
    static const struct {
        const char * text;
        expert_role  role;
    } roles[] = {
        { "ffn_gate_up_", expert_role::gate_up },
        { "ffn_gate_", expert_role::gate },
        { "ffn_up_", expert_role::up },
        { "ffn_down_", expert_role::down },
    };

    const char * p = std::strstr(name, "blk.");
    if (p == nullptr || (p != name && p[-1] != '#')) {
        return false;
    }
    p += 4;
    char *     end   = nullptr;
    const long layer = std::strtol(p, &end, 10);
    if (end == p || *end != '.' || *p < '0' || *p > '9') {
        return false;
    }
    p = end + 1;
    for (const auto & role : roles) {
        const size_t n = std::strlen(role.text);
        if (std::strncmp(p, role.text, n) != 0) {
            continue;
        }
        p += n;
        const char * weight = std::strstr(p, ".weight");
        if (weight == nullptr || (weight[7] != '\0' && weight[7] != '#')) {
            return false;
        }
        const size_t length = static_cast<size_t>(weight - p);
        for (int family = 0; family < n_expert_families; family++) {
            if (std::strlen(family_names[family]) == length && std::strncmp(p, family_names[family], length) == 0) {
                result.layer  = static_cast<int>(layer);
                result.family = family;
                result.role   = role.role;
                return true;
            }
        }
        return false;
    }
    return false;
}

} // namespace moecache
