#include "core/policies/admission-filter.h"

namespace moecache {

admission_filter::admission_filter(const policy_spec & spec, uint32_t n_items) :
    admit_after(spec.whole("admit-after")), payback(spec.real("payback")),
    horizon_tokens(spec.whole("payback-horizon")) {
    if (admit_after > 1 || payback > 0) {
        uses.assign(n_items, 0);
    }
}

bool admission_filter::pays_back(uint32_t item, uint32_t victim) const {
    if (payback <= 0) {
        return true;
    }
    const int64_t more = uses[item] - (victim == no_item ? 0 : uses[victim]);
    return static_cast<double>(horizon_tokens) * static_cast<double>(more) >= payback * static_cast<double>(now + 1);
}

void admission_filter::save(session_state & state) const {
    if (on()) {
        state.put("filter_uses", uses);
        state.put("filter_token", { now });
    }
}

std::string admission_filter::load(const session_state & state) {
    if (!on()) {
        return "";
    }
    const std::string error = state.get("filter_uses", uses, uses.size());
    return error.empty() ? state.get("filter_token", now, 0, state.most_token()) : error;
}

} // namespace moecache
