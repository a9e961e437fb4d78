// The simulator without slots, for copies that are complete at the next token: then the snapshot of an event is the
// policy's content before it, and the decisions say what that is. Any policy, one capacity; the same policy object as
// at run time.
#pragma once

#include "core/sim/engine.h"
#include "core/sim/victim-agreement.h"

#include <memory>
#include <vector>

namespace moecache {

class content_replay final : public engine {
public:
    // `g` has the slots; it and `agreement` (NULL: not wanted) must outlive it.
    content_replay(const cache_geometry & g, std::unique_ptr<policy> p, victim_agreement * agreement);

    std::vector<sim_result> run(const event_stream & events, const std::vector<std::vector<uint32_t>> & slots) override;

private:
    void apply(const std::vector<decision> & decisions);
    void step(const cache_event & event, bool decode);

    const cache_geometry &  geometry;
    std::unique_ptr<policy> rules;
    victim_agreement *      meter;
    sim_result              result;
    std::vector<uint32_t>   first_slots;  // [budgets + 1]
    std::vector<uint32_t>   n_taken;      // [budgets] the first ones of a budget's slots
    std::vector<uint32_t>   item_of_slot; // [slots]
    std::vector<uint32_t>   slot_of_item; // [items] no_item: not in the content
    std::vector<decision>   decisions;    // of the event at hand
};

} // namespace moecache
