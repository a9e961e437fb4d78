// The stand-in device, entry by entry: what it answers to llama.cpp's loader, scheduler and --fit (DESIGN 2b).
#include "backend/backend.h"
#include "backend/buffer-type.h"
#include "backend/device.h"
#include "core/config.h"

#include "check.h"

#include <cstdlib>
#include <cstring>
#include <string>

using namespace moecache;

extern "C" ggml_backend_reg_t ggml_backend_init(void);
extern "C" int                ggml_backend_score(void);

namespace {

ggml_backend_reg_t registry() {
    static ggml_backend_reg_t reg = [] {
        setenv("GGML_MOECACHE_STANDIN", "1", 1);
        ggml_backend_load_all_from_path(MOECACHE_LLAMA_BIN);
        return ggml_backend_init();
    }();
    return reg;
}

ggml_backend_dev_t device() {
    return ggml_backend_reg_dev_get(registry(), 0);
}

ggml_backend_buffer_type_t default_type() {
    return ggml_backend_dev_buffer_type(device());
}

ggml_backend_buffer_type_t store_type() {
    const auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(registry(), "ggml_backend_dev_get_extra_bufts"));
    return get(device())[0];
}

// One operation whose weight is asked about as llama.cpp's loader does it: in an empty buffer of a type.
struct probe {
    ggml_context * ctx = ggml_init({ 1 << 20, nullptr, true });
    ggml_tensor *  weight;
    ggml_tensor *  op;

    probe(int64_t n_expert, const char * name = "blk.0.ffn_up_exps.weight") {
        weight = ggml_new_tensor_3d(ctx, GGML_TYPE_Q4_0, 64, 32, n_expert);
        ggml_set_name(weight, name);
        ggml_tensor * x   = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 1, 5);
        ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, 5);
        op                = ggml_mul_mat_id(ctx, weight, x, ids);
    }

    ~probe() {
        ggml_backend_buffer_free(weight->buffer);
        ggml_free(ctx);
    }

    void place(ggml_backend_buffer_type_t type) {
        ggml_backend_buffer_free(weight->buffer);
        weight->buffer = ggml_backend_buft_alloc_buffer(type, 0);
    }

    bool supported() const { return ggml_backend_dev_supports_op(device(), op); }
};

uint64_t free_bytes() {
    size_t free  = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device(), &free, &total);
    return free;
}

uint64_t total_bytes() {
    size_t free  = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device(), &free, &total);
    return total;
}

} // namespace

TEST(the_registry_is_the_same_however_often_it_is_asked_for) {
    CHECK_EQ(ggml_backend_score(), 0); // no device yet: no registry either, and another try later
    CHECK(ggml_backend_init() == nullptr);
    CHECK(registry() != nullptr);
    CHECK_EQ(ggml_backend_score(), 1);
    CHECK(ggml_backend_init() == registry());
    CHECK_EQ(ggml_backend_reg_dev_count(registry()), 1u);
    CHECK_EQ(std::string(ggml_backend_reg_name(registry())), "MoECache");
    CHECK_EQ(registry()->api_version, GGML_BACKEND_API_VERSION);
}

TEST(the_device_is_a_gpu_to_llama_cpp) {
    ggml_backend_dev_props props;
    std::memset(&props, 0xff, sizeof(props));
    ggml_backend_dev_get_props(device(), &props);
    CHECK_EQ(std::string(props.name), "MoECache0");
    CHECK(props.type == GGML_BACKEND_DEVICE_TYPE_GPU);
    CHECK(props.device_id == nullptr);
    CHECK(!props.caps.buffer_from_host_ptr);
    CHECK_EQ(std::string(ggml_backend_buft_name(default_type())), "MoECache0");
    CHECK_EQ(std::string(ggml_backend_buft_name(store_type())), "MoECache0_Host");
}

TEST(experts_go_to_the_store_and_nothing_else_does) {
    probe experts(8);
    experts.place(default_type());
    CHECK(!experts.supported());
    experts.place(store_type());
    CHECK(experts.supported());
    probe scale(1, "blk.0.ffn_up_exps.scale"); // asked for as MUL_MAT_ID too, used by RESHAPE later
    scale.place(default_type());
    CHECK(scale.supported());
}

TEST(experts_that_the_user_put_on_the_device_run_there) {
    probe experts(8);
    experts.weight->buffer        = ggml_backend_buft_alloc_buffer(default_type(), 64 * 32 * 8);
    experts.weight->buffer->usage = GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    CHECK(experts.supported());
    ggml_backend_buffer_free(experts.weight->buffer);
    experts.weight->buffer        = ggml_backend_buft_alloc_buffer(default_type(), 0); // --fit's model without memory
    experts.weight->buffer->usage = GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    CHECK(experts.supported());
}

TEST(only_mul_mat_id_reads_the_store) {
    ggml_context *        ctx    = ggml_init({ 1 << 20, nullptr, true });
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(store_type(), 1024);
    ggml_tensor *         weight = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 4);
    weight->buffer               = buffer;
    ggml_tensor * x              = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 4);
    CHECK(!ggml_backend_dev_supports_op(device(), ggml_mul_mat(ctx, weight, x)));
    CHECK(!ggml_backend_dev_supports_op(device(), ggml_add(ctx, x, weight)));
    ggml_tensor * view = ggml_reshape_1d(ctx, weight, 16);
    CHECK(ggml_backend_dev_supports_op(device(), view));
    CHECK(!ggml_backend_dev_supports_op(device(), ggml_scale(ctx, view, 2.0f))); // through the view
    CHECK(ggml_backend_dev_supports_op(device(), ggml_mul_mat(ctx, x, x)));
    ggml_backend_dev_t cpu =
        ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); // refused operations fall to the CPU
    CHECK(ggml_backend_dev_supports_buft(cpu, store_type()));
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
}

TEST(buffer_types_of_others_are_refused) {
    CHECK(ggml_backend_dev_supports_buft(device(), default_type()));
    CHECK(ggml_backend_dev_supports_buft(device(), store_type()));
    CHECK(!ggml_backend_dev_supports_buft(device(), ggml_backend_cpu_buffer_type()));
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    CHECK(!ggml_backend_dev_supports_buft(cpu, default_type()));
}

TEST(operations_on_memory_of_another_device_are_refused) {
    ggml_backend_dev_t other =
        device_create(registry(), ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), 1, true);
    ggml_context *        ctx    = ggml_init({ 1 << 20, nullptr, true });
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(other), 1024);
    ggml_tensor *         weight = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 4);
    ggml_tensor *         x      = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 4);
    weight->buffer               = buffer;
    CHECK(!ggml_backend_dev_supports_op(device(), ggml_mul_mat(ctx, weight, x)));
    CHECK(ggml_backend_dev_supports_op(other, ggml_mul_mat(ctx, weight, x)));
    probe experts(8);
    experts.place(device_get(other)->extra_types[0]);
    CHECK(!experts.supported());
    experts.place(store_type());
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    delete device_get(other); // devices of the registry live for ever, this one was only ours
    delete other;
}

TEST(the_store_is_host_memory_in_pieces_of_2_gib) {
    CHECK(ggml_backend_buft_is_host(store_type()));
    CHECK(!ggml_backend_buft_is_host(default_type()));
    CHECK_EQ(ggml_backend_buft_get_max_size(store_type()), size_t(2) << 30);
    CHECK(store_type() != ggml_backend_dev_host_buffer_type(device()));
}

TEST(default_buffers_are_the_inner_devices_with_our_type) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(default_type(), 4096);
    CHECK(ggml_backend_buffer_get_type(buffer) == default_type());
    ggml_context * ctx    = ggml_init({ 1 << 16, nullptr, true });
    ggml_tensor *  tensor = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    CHECK(ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer)) == GGML_STATUS_SUCCESS);
    const float sent[4]     = { 1, 2, 3, 4 };
    float       received[4] = { 0 };
    ggml_backend_tensor_set(tensor, sent, 0, sizeof(sent));
    ggml_backend_tensor_get(tensor, received, 0, sizeof(received));
    CHECK(std::memcmp(sent, received, sizeof(sent)) == 0);
    inner_view view(tensor);
    CHECK(view.tensor.buffer->buft == ggml_backend_cpu_buffer_type());
    CHECK(view.tensor.data == tensor->data);
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
}

TEST(store_buffers_keep_account_and_hold_what_is_written) {
    device_context *      context = device_get(device());
    const uint64_t        before  = context->store_bytes;
    ggml_backend_buffer_t buffer  = ggml_backend_buft_alloc_buffer(store_type(), 4096);
    CHECK_EQ(context->store_bytes - before, 4096u);
    CHECK_EQ(context->store_pinned_bytes.load(), 0u); // the CPU has no pinned memory
    ggml_context * ctx    = ggml_init({ 1 << 16, nullptr, true });
    ggml_tensor *  tensor = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 8);
    ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer));
    ggml_backend_buffer_clear(buffer, 0);
    const int32_t sent[2]     = { 7, 9 };
    int32_t       received[8] = { 0 };
    ggml_backend_tensor_set(tensor, sent, 8, sizeof(sent));
    ggml_backend_tensor_get(tensor, received, 0, sizeof(received));
    CHECK(received[1] == 0 && received[2] == 7 && received[3] == 9 && received[4] == 0);
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    CHECK_EQ(context->store_bytes.load(), before);
}

TEST(a_capped_device_reports_and_refuses) {
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", "8"), "");
    CHECK_EQ(total_bytes(), 8u << 20);
    CHECK_EQ(free_bytes(), 8u << 20);
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(default_type(), 3 << 20);
    CHECK_EQ(free_bytes(), 5u << 20);
    CHECK(ggml_backend_buft_alloc_buffer(default_type(), 6 << 20) == nullptr);
    ggml_backend_buffer_free(buffer);
    CHECK_EQ(free_bytes(), 8u << 20);
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", nullptr), "");
    CHECK(total_bytes() > 8u << 20);
}

TEST(capacity_all_reserves_what_the_loader_asked_about) {
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", "8"), "");
    const uint64_t before = free_bytes();
    probe          gate(8, "blk.0.ffn_gate_exps.weight");
    probe          down(8, "blk.0.ffn_down_exps.weight");
    gate.place(store_type());
    down.place(store_type());
    gate.supported();
    gate.supported(); // a name that is known begins a new load: earlier probes are forgotten
    down.supported();
    CHECK_EQ(free_bytes(), before); // capacity 0 needs nothing
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", "all"), "");
    CHECK_EQ(before - free_bytes(), ggml_nbytes(gate.weight) + ggml_nbytes(down.weight));
    gate.supported();
    CHECK_EQ(before - free_bytes(), ggml_nbytes(gate.weight));
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", nullptr), "");
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", nullptr), "");
}

// 8 experts of 2 x 1152 bytes, top-2: slots and 2 spare places, and 32 x 2 ids as places.
TEST(a_capacity_between_reserves_its_slots) {
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", "8"), "");
    const uint64_t before = free_bytes();
    probe          up(8, "blk.5.ffn_up_exps.weight");
    probe          down(8, "blk.5.ffn_down_exps.weight");
    up.place(store_type());
    down.place(store_type());
    up.supported();
    down.supported();
    const auto reserved = [&](const char * capacity) {
        CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", capacity), "");
        return before - free_bytes();
    };
    CHECK_EQ(reserved("0"), 0u);
    CHECK_EQ(reserved("4"), (4 + 2) * 2304u + 256u);
    CHECK_EQ(reserved("25%"), (2 + 2) * 2304u + 256u);
    CHECK_EQ(reserved("5KiB"), (2 + 2) * 2304u + 256u);
    CHECK_EQ(reserved("1GiB"), (8 + 2) * 2304u + 256u);
    CHECK_EQ(reserved("9"), 0u);    // more than there are: no cache
    CHECK_EQ(reserved("auto"), 0u); // 8 MiB are less than the working room
    ggml_backend_buffer_t others = ggml_backend_buft_alloc_buffer(default_type(), (8 << 20) - 8192);
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", "4"), "");
    CHECK_EQ(free_bytes(), 8192u); // does not fit, and the layers come first
    ggml_backend_buffer_free(others);
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", nullptr), "");
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", nullptr), "");
}

// 6 GiB of device: 2 of working room, 1 of another weight, so 3 to share. 64 experts of 2 x 36 MiB.
TEST(experts_have_a_share_where_a_kv_cache_would_take_all) {
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", "6144"), "");
    const uint64_t mib    = 1 << 20;
    const uint64_t before = free_bytes();
    CHECK_EQ(before, 6144 * mib);
    ggml_context * ctx = ggml_init({ 1 << 20, nullptr, true });
    const auto     ask = [&](const char * name, ggml_backend_buffer_type_t type, int64_t n_expert) {
        ggml_tensor * weight = n_expert > 0 ? ggml_new_tensor_3d(ctx, GGML_TYPE_Q4_0, 8192, 8192, n_expert) :
                                                  ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 16384, 16384);
        ggml_set_name(weight, name);
        weight->buffer   = ggml_backend_buft_alloc_buffer(type, 0);
        ggml_tensor * x  = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, weight->ne[0], 1, 5);
        ggml_tensor * op = n_expert > 0 ?
                                   ggml_mul_mat_id(ctx, weight, x, ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, 5)) :
                                   ggml_mul_mat(ctx, weight, x);
        CHECK(ggml_backend_dev_supports_op(device(), op));
        ggml_backend_buffer_free(weight->buffer);
        weight->buffer = nullptr;
    };
    const auto reserved = [&](const char * capacity) {
        CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", capacity), "");
        return before - free_bytes();
    };
    ask("output.weight", default_type(), 0);
    ask("blk.0.ffn_up_exps.weight", store_type(), 64);
    ask("blk.0.ffn_down_exps.weight", store_type(), 64);
    const uint64_t expert = 2 * 36 * mib;
    CHECK_EQ(reserved("auto"), 1536 * mib); // half of 3 GiB
    CHECK_EQ(reserved("8"), (8 + 2) * expert + 256);
    CHECK_EQ(reserved("50%"), (32 + 2) * expert + 256); // 2.4 GiB
    CHECK_EQ(reserved("64"), (64 + 2) * expert + 256);  // 4.6 GiB: said to be wanted, so the layers' trouble
    ggml_backend_buffer_t used = ggml_backend_buft_alloc_buffer(default_type(), 2048 * mib);
    CHECK_EQ(4096 * mib - free_bytes(), 512 * mib); // 4.6 GiB do not fit into 4: half of 1 GiB
    ggml_backend_buffer_free(used);
    CHECK_EQ(config_set("GGML_MOECACHE_EXPERT_SHARE", "10%"), "");
    CHECK_EQ(reserved("auto"), 3072 * mib / 10);
    ask("blk.0.ffn_up_exps.weight", store_type(), 8); // the next load
    ask("blk.0.ffn_down_exps.weight", store_type(), 8);
    CHECK_EQ(config_set("GGML_MOECACHE_EXPERT_SHARE", "100%"), "");
    CHECK_EQ(reserved("auto"), (8 + 2) * expert + 256); // no more than all experts need
    for (const char * name : { "GGML_MOECACHE_EXPERT_SHARE", "GGML_MOECACHE_CAPACITY", "GGML_MOECACHE_DEVICE_MIB" }) {
        CHECK_EQ(config_set(name, nullptr), "");
    }
    ggml_free(ctx);
}

TEST(a_backend_forwards_what_the_inner_one_has) {
    ggml_backend_t backend = ggml_backend_dev_init(device(), nullptr);
    CHECK(backend_is_ours(backend));
    CHECK_EQ(std::string(ggml_backend_name(backend)), "MoECache0");
    CHECK(ggml_backend_get_device(backend) == device());
    CHECK(backend->iface.graph_plan_create == nullptr);
    CHECK(backend->iface.set_tensor_async == nullptr); // the CPU has none, GGML then copies at once
    CHECK(backend->iface.event_record == nullptr);
    for (const char * name :
         { "ggml_backend_set_n_threads", "ggml_backend_set_abort_callback", "ggml_backend_get_features" }) {
        CHECK(ggml_backend_reg_get_proc_address(registry(), name) != nullptr);
    }
    for (const char * name : { "ggml_backend_split_buffer_type", "ggml_backend_comm_init", "no_such_function" }) {
        CHECK(ggml_backend_reg_get_proc_address(registry(), name) == nullptr);
    }
    ggml_backend_free(backend);
}

TEST(a_wrong_setting_makes_no_backend) {
    setenv("GGML_MOECACHE_CAPACITY", "some", 1);
    CHECK(ggml_backend_dev_init(device(), nullptr) == nullptr);
    unsetenv("GGML_MOECACHE_CAPACITY");
}
