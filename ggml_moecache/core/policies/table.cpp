#include "core/policies/table.h"

namespace moecache {

// Each of them is defined in the file of its policy.
policy_entry cumulative_lfu_entry();
policy_entry lru_entry();
policy_entry decayed_lfu_entry();
policy_entry windowed_lfu_entry();
policy_entry lfru_entry();
policy_entry request_lfu_entry();
policy_entry interval_refresh_entry();
policy_entry static_entry();
policy_entry cold_static_entry();
policy_entry hindsight_static_entry();
policy_entry random_entry();
policy_entry belady_entry();
policy_entry belady_forced_entry();
policy_entry lfu_entry();

const std::vector<policy_entry> & policy_table() {
    static const std::vector<policy_entry> table = {
        cumulative_lfu_entry(),   lru_entry(),    decayed_lfu_entry(),
        windowed_lfu_entry(),     lfru_entry(),   request_lfu_entry(),
        interval_refresh_entry(), static_entry(), cold_static_entry(),
        hindsight_static_entry(), random_entry(), belady_entry(),
        belady_forced_entry(),    lfu_entry(),
    };
    return table;
}

const policy_entry * find_policy_entry(const std::string & name) {
    for (const policy_entry & entry : policy_table()) {
        if (name == entry.info.name) {
            return &entry;
        }
    }
    return nullptr;
}

const policy_info * find_policy(const std::string & name) {
    const policy_entry * entry = find_policy_entry(name);
    return entry != nullptr ? &entry->info : nullptr;
}

std::string policy_names() {
    std::string result;
    for (const policy_entry & entry : policy_table()) {
        result += (result.empty() ? "" : ", ") + std::string(entry.info.name);
    }
    return result;
}

std::string parameter_names(const policy_info & info) {
    std::string result;
    for (const parameter_info & parameter : info.parameters) {
        result += (result.empty() ? "" : ", ") + std::string(parameter.name);
    }
    return result.empty() ? "none" : result;
}

std::vector<parameter_info> with_admission_options(std::vector<parameter_info> own) {
    own.push_back({ "admit-after", value_kind::whole, "uses", "1", "a whole number of uses, 1 to 1000000", 1, 1e6,
                    "an expert is admitted at this use of it or later; 1: no filter" });
    own.push_back({ "payback", value_kind::real, "hits", "0", "a number of hits, 0 to 1000000", 0, 1e6,
                    "hits that one copy costs: a newcomer must promise that many more than its victim; 0: no filter" });
    own.push_back({ "payback-horizon", value_kind::whole, "tokens", "1024", "a whole number of tokens, 1 to 1000000000",
                    1, 1e9, "tokens within which a copy must pay back, at the rate of use so far" });
    return own;
}

std::string make_policy(const policy_inputs & in, std::unique_ptr<policy> & out) {
    if (in.spec.info->needs_future && in.ahead == nullptr) {
        return std::string("policy ") + in.spec.info->name +
               " needs to see the whole trace beforehand: it can be simulated, not run";
    }
    return find_policy_entry(in.spec.info->name)->make(in, out);
}

} // namespace moecache
