#include "core/expert-name.h"

#include "check.h"

using namespace moecache;

static void is_expert(const char * text, int layer, const char * family, expert_role role) {
    expert_name name;
    CHECK(expert_name_parse(text, name));
    CHECK_EQ(name.layer, layer);
    CHECK_EQ(std::string(expert_family_name(name.family)), family);
    CHECK_EQ(expert_family_number(family), name.family);
    CHECK(name.role == role);
}

TEST(expert_weights_are_recognised) {
    is_expert("blk.0.ffn_gate_exps.weight", 0, "exps", expert_role::gate);
    is_expert("blk.7.ffn_up_exps.weight", 7, "exps", expert_role::up);
    is_expert("blk.61.ffn_down_exps.weight", 61, "exps", expert_role::down);
    is_expert("blk.3.ffn_gate_up_exps.weight", 3, "exps", expert_role::gate_up);
    is_expert("blk.12.ffn_down_chexps.weight", 12, "chexps", expert_role::down);
}

TEST(the_schedulers_copies_are_recognised) {
    is_expert("MoECache0#blk.4.ffn_up_exps.weight#0", 4, "exps", expert_role::up);
}

TEST(everything_else_is_not_an_expert_weight) {
    for (const char * text : {
             "",
             "output.weight",
             "blk.0.ffn_gate_inp.weight",
             "blk.0.ffn_gate.weight",
             "blk.0.ffn_gate_shexp.weight",
             "blk.0.ffn_gate_exps.bias",
             "blk.0.ffn_gate_exps.scale",
             "blk.0.ffn_down_exps.weight.lora_a",
             "blk.0.ffn_down_exps.weight.lora_b",
             "blk.x.ffn_down_exps.weight",
             "blk..ffn_down_exps.weight",
             "blk.-1.ffn_down_exps.weight",
             "xblk.1.ffn_down_exps.weight",
             "blk.1.ffn_down_exps",
             "blk.1.ffn_down_.weight",
         }) {
        expert_name name;
        CHECK(!expert_name_parse(text, name));
    }
}
