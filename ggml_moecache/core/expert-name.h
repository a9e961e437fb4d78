// What the name of a weight says about it: layer, expert family and role, as llama.cpp names tensors
// ("blk.7.ffn_down_exps.weight"). Two families exist in one layer of GroveMoE ("exps" and "chexps"), so an expert is
// identified by (layer, family, expert).
#pragma once

#include <string>

namespace moecache {

// Families that exist, by the number that the routing log stores; REQUIRES: family < n_expert_families.
constexpr int n_expert_families = 2;
const char *  expert_family_name(int family);
int           expert_family_number(const std::string & name); // REQUIRES: the name of one

enum class expert_role { gate, up, gate_up, down };

struct expert_name {
    int         layer  = -1;
    int         family = 0; // 0 "exps", 1 "chexps"
    expert_role role   = expert_role::down;
};

// Rises with the place of a block in a ubatch: up through the layers, in a layer the families one after the other.
inline int block_order(int layer, int family) {
    return layer * n_expert_families + family;
}

// Parse the name of an expert weight. The scheduler's copies ("MoECache0#blk.7.ffn_down_exps.weight#0") are recognised
// too. Returns false for everything else: biases, scales, adapters ("....weight.lora_a"), dense layers.
bool expert_name_parse(const char * name, expert_name & result);

} // namespace moecache
