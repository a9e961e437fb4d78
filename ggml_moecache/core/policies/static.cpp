// static: a content that a file names, for good.
#include "core/policies/expert-list.h"
#include "core/policies/fixed-content.h"

namespace moecache {

policy_entry static_entry() {
    return { { "static",
               "the experts that a file names, placed before the first event, for good",
               { { "file", value_kind::text, "", "", "the name of a CSV file, without ':' in it", 0, 0,
                   "CSV with the header layer,expert or layer,family,expert, best first" } },
               false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 std::vector<uint32_t> ranking;
                 const std::string     error = read_expert_list(in.spec.text("file"), in.geometry, ranking);
                 if (error.empty()) {
                     out = std::make_unique<fixed_content>(in.geometry, ranking);
                 }
                 return error;
             },
             nullptr };
}

} // namespace moecache
