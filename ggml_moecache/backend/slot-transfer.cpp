#include "backend/slot-transfer.h"

namespace moecache {

size_t slot_map::parts(const copy_request & copy, std::array<expert_part, n_expert_roles> & out) const {
    const uint32_t column = geometry->column_of_item[copy.item];
    return pools->parts(column, geometry->expert_of_item(copy.item), places[copy.slot], out);
}

} // namespace moecache
