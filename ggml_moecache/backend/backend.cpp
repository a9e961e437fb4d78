#include "backend/backend.h"

#include "backend/buffer-type.h"
#include "backend/fallbacks.h"
#include "backend/graph-compute.h"
#include "backend/graph-order.h"
#include "core/policies/spec.h"

namespace moecache {

static backend_context * context_of(ggml_backend_t backend) {
    return static_cast<backend_context *>(backend->context);
}

static ggml_backend_t inner_of(ggml_backend_t backend) {
    return context_of(backend)->inner;
}

static enum ggml_status backend_graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    return compute_graph(context_of(backend), graph);
}

// --- the rest of the table ------------------------------------------------------------------------------------------------------

static const char * backend_get_name(ggml_backend_t backend) {
    return device_get(context_of(backend)->dev)->name.c_str();
}

static void backend_free(ggml_backend_t backend) {
    backend_context * context = context_of(backend);
    context->control->close(); // nobody else touches the cache from here on
    finish(context);
    if (context->announced) { // an adapter may have been freed since
        context_facts facts = context->status->facts();
        facts.resident_bytes =
            context->moe->cache != nullptr ? context->moe->cache->size_bytes() : context->moe->residents.bytes();
        context->status->update(facts);
    }
    context->moe.reset();
    ggml_backend_free(context->inner);
    context->status->close();
    if (context->announced) {
        GGML_LOG_WARN("%s\n", context->status->exit_line().c_str());
        write_status_file(context);
    }
    delete context;
    delete backend;
}

// The inner backend's asynchronous copies insist on its own buffer type. A tensor elsewhere (host memory) is copied at
// once.
static void backend_set_tensor_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset,
                                     size_t size) {
    ggml_backend_t inner = inner_of(backend);
    if (!buffer_type_is_default(buffer_of(tensor)->buft)) {
        ggml_backend_synchronize(inner);
        ggml_backend_tensor_set(tensor, data, offset, size);
        return;
    }
    inner_view view(tensor);
    inner->iface.set_tensor_async(inner, &view.tensor, data, offset, size);
}

static void backend_get_tensor_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset,
                                     size_t size) {
    ggml_backend_t inner = inner_of(backend);
    if (!buffer_type_is_default(buffer_of(tensor)->buft)) {
        ggml_backend_synchronize(inner);
        ggml_backend_tensor_get(tensor, data, offset, size);
        return;
    }
    inner_view view(tensor);
    inner->iface.get_tensor_async(inner, &view.tensor, data, offset, size);
}

static void backend_set_tensor_2d_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset,
                                        size_t size, size_t n_copies, size_t stride_tensor, size_t stride_data) {
    ggml_backend_t inner = inner_of(backend);
    if (!buffer_type_is_default(buffer_of(tensor)->buft)) {
        ggml_backend_synchronize(inner);
        ggml_backend_tensor_set_2d(tensor, data, offset, size, n_copies, stride_tensor, stride_data);
        return;
    }
    inner_view view(tensor);
    inner->iface.set_tensor_2d_async(inner, &view.tensor, data, offset, size, n_copies, stride_tensor, stride_data);
}

static void backend_get_tensor_2d_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset,
                                        size_t size, size_t n_copies, size_t stride_tensor, size_t stride_data) {
    ggml_backend_t inner = inner_of(backend);
    if (!buffer_type_is_default(buffer_of(tensor)->buft)) {
        ggml_backend_synchronize(inner);
        ggml_backend_tensor_get_2d(tensor, data, offset, size, n_copies, stride_tensor, stride_data);
        return;
    }
    inner_view view(tensor);
    inner->iface.get_tensor_2d_async(inner, &view.tensor, data, offset, size, n_copies, stride_tensor, stride_data);
}

// Between two GPUs. The inner backends know each other, not us.
static bool backend_cpy_tensor_async(ggml_backend_t backend_src, ggml_backend_t backend_dst, const ggml_tensor * src,
                                     ggml_tensor * dst) {
    ggml_backend_t inner_src = backend_is_ours(backend_src) ? inner_of(backend_src) : backend_src;
    ggml_backend_t inner_dst = backend_is_ours(backend_dst) ? inner_of(backend_dst) : backend_dst;
    return inner_dst->iface.cpy_tensor_async != nullptr &&
           inner_dst->iface.cpy_tensor_async(inner_src, inner_dst, src, dst);
}

static void backend_synchronize(ggml_backend_t backend) {
    ggml_backend_synchronize(inner_of(backend));
    if (context_of(backend)->log != nullptr) {
        context_of(backend)->log->synchronized();
    }
}

static void backend_event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    inner_of(backend)->iface.event_record(inner_of(backend), event);
}

static void backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    inner_of(backend)->iface.event_wait(inner_of(backend), event);
}

static void backend_graph_optimize(ggml_backend_t backend, ggml_cgraph * graph,
                                   ggml_backend_graph_optimize_params * params) {
    ggml_backend_t         inner  = inner_of(backend);
    const device_context * device = device_get(context_of(backend)->dev);
    if (context_of(backend)->settings.capacity.partial()) {
        bring_blocks_together(graph, [device](const ggml_tensor * weight) { return in_store(weight, device); });
    }
    if (inner->iface.graph_optimize != nullptr) {
        inner->iface.graph_optimize(inner, graph, params);
    }
    if (context_of(backend)->log != nullptr || context_of(backend)->by_requests) {
        batch_tracker::keep_inputs(graph, params);
    }
    if (context_of(backend)->log != nullptr) {
        context_of(backend)->log->graph_optimize(graph, params);
    }
}

static ggml_guid_t backend_guid() {
    static ggml_guid guid = { 0x6d, 0x6f, 0x65, 0x63, 0x61, 0x63, 0x68, 0x65,
                              0x1e, 0x52, 0x9b, 0x40, 0xa7, 0x33, 0xc8, 0x01 };
    return &guid;
}

bool backend_is_ours(ggml_backend_t backend) {
    return backend != nullptr && ggml_guid_matches(backend->guid, backend_guid());
}

static ggml_backend_i backend_table(const ggml_backend_i & inner) {
    return {
        /* .get_name            = */ backend_get_name,
        /* .free                = */ backend_free,
        /* .set_tensor_async    = */ inner.set_tensor_async != nullptr ? backend_set_tensor_async : nullptr,
        /* .get_tensor_async    = */ inner.get_tensor_async != nullptr ? backend_get_tensor_async : nullptr,
        /* .set_tensor_2d_async = */ inner.set_tensor_2d_async != nullptr ? backend_set_tensor_2d_async : nullptr,
        /* .get_tensor_2d_async = */ inner.get_tensor_2d_async != nullptr ? backend_get_tensor_2d_async : nullptr,
        /* .cpy_tensor_async    = */ inner.cpy_tensor_async != nullptr ? backend_cpy_tensor_async : nullptr,
        /* .synchronize         = */ backend_synchronize,
        /* .graph_plan_create   = */ nullptr, // GGML's plans would pass MoE blocks by us; llama.cpp uses none
        /* .graph_plan_free     = */ nullptr,
        /* .graph_plan_update   = */ nullptr,
        /* .graph_plan_compute  = */ nullptr,
        /* .graph_compute       = */ backend_graph_compute,
        /* .event_record        = */ inner.event_record != nullptr ? backend_event_record : nullptr,
        /* .event_wait          = */ inner.event_wait != nullptr ? backend_event_wait : nullptr,
        /* .graph_optimize      = */ backend_graph_optimize,
    };
}

ggml_backend_t backend_create(ggml_backend_dev_t dev, const char * params) {
    const std::string error = config_check();
    if (!error.empty()) {
        GGML_LOG_ERROR("moecache: inactive: %s: %s\n", reason_name(reason::bad_config), error.c_str());
        return nullptr;
    }
    device_context * device = device_get(dev);
    ggml_backend_t   inner  = ggml_backend_dev_init(device->inner, params);
    if (inner == nullptr) {
        return nullptr;
    }
    backend_context * context = new backend_context;
    context->dev              = dev;
    context->inner            = inner;
    context->settings         = config_read();
    context->moe              = std::make_unique<moe_op>(dev, inner);
    context_facts facts;
    facts.device = device->name;
    facts.inner =
        std::string(ggml_backend_dev_name(device->inner)) + " (" + ggml_backend_dev_description(device->inner) + ")";
    facts.capacity   = context->settings.capacity.text;
    context->status  = context_status::create(facts);
    context->control = session_control::create(context->status, context->settings);
    policy_spec spec;
    policy_spec::parse(context->settings.policy, spec);
    context->by_requests = context->settings.capacity.partial() && spec.info->by_requests;
    context->batches     = std::make_unique<batch_tracker>(context->status->request_id);
    if (context_log::wanted(context->settings)) {
        context->log = std::make_unique<context_log>(dev, inner, context->settings, context->status, *context->batches);
    }
    return new ggml_backend { backend_guid(), backend_table(inner->iface), dev, context };
}

// --- what the registry exports ------------------------------------------------------------------------------------------------------

static void * inner_function(ggml_backend_t backend, const char * name) {
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device_get(context_of(backend)->dev)->inner),
                                             name);
}

void backend_set_n_threads(ggml_backend_t backend, int n_threads) {
    context_of(backend)->moe->host.set_n_threads(n_threads);
    const auto inner_fn =
        reinterpret_cast<ggml_backend_set_n_threads_t>(inner_function(backend, "ggml_backend_set_n_threads"));
    if (inner_fn != nullptr) { // the stand-in
        inner_fn(inner_of(backend), n_threads);
    }
}

void backend_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data) {
    context_of(backend)->moe->host.set_abort_callback(callback, data);
    const auto inner_fn =
        reinterpret_cast<ggml_backend_set_abort_callback_t>(inner_function(backend, "ggml_backend_set_abort_callback"));
    if (inner_fn != nullptr) {
        inner_fn(inner_of(backend), callback, data);
    }
}

} // namespace moecache
