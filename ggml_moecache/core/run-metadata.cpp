#include "core/run-metadata.h"

#include "core/file.h"
#include "core/json.h"
#include "core/routing-log.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include <dlfcn.h>

namespace moecache {

namespace {

using run_fields_by_name = std::map<std::string, std::string>; // name -> JSON

struct known_context : run_context {
    run_fields_by_name fields; // set by hand before the context began, or for it since
};

struct run_state {
    std::mutex                 mutex;
    std::string                created;
    std::string                cuda_runtime;
    std::string                cuda_driver;
    bool                       has_cuda = false;
    std::vector<known_context> contexts;
    run_fields_by_name         fields; // set by hand, for the next context
};

run_state & state() {
    static run_state * only = new run_state; // contexts may outlive static objects
    return *only;
}

const char * const run_fields[]   = { "seed",      "warmup_tokens",     "benchmark",
                                      "policy",    "policy_parameters", "llama_cpp.llama_cpp_python",
                                      "top1_every" };
const char * const model_fields[] = { "model.file", "model.architecture", "model.quantization", "model.sha256",
                                      "model.n_layers" };

std::string now_utc() {
    char         text[32];
    const time_t now = time(nullptr);
    tm           utc;
    gmtime_r(&now, &utc);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        const size_t colon = line.find(": ");
        if (line.compare(0, 10, "model name") == 0 && colon != std::string::npos) {
            return line.substr(colon + 2);
        }
    }
    return "";
}

// A field that was set by hand, else `known` (a JSON value).
void put(json_writer & json, const run_fields_by_name & fields, const char * key, const std::string & name,
         const std::string & known) {
    const auto field = fields.find(name);
    json.raw(key, field != fields.end() ? field->second : known);
}

void put_text(json_writer & json, const char * key, const std::string & text) {
    text.empty() ? json.null(key) : json.value(key, text);
}

// What llama.cpp's programs print with --version. Their library of common code shows it where it is a shared one; in a
// program that is linked statically, and in Python, nobody knows.
void write_llama_build(json_writer & json) {
    const void * number = dlsym(RTLD_DEFAULT, "LLAMA_BUILD_NUMBER");
    const void * commit = dlsym(RTLD_DEFAULT, "LLAMA_COMMIT");
    if (number == nullptr || commit == nullptr) {
        json.null("build").null("commit");
        return;
    }
    json.value("build", static_cast<uint64_t>(*static_cast<const int *>(number)));
    json.value("commit", std::string(*static_cast<const char * const *>(commit)));
}

void write_layouts(json_writer & json, const run_context & context) {
    json.begin_array("expert_bytes");
    for (const expert_layout & layout : context.layouts) {
        json.begin_object().value("layer_id", static_cast<uint64_t>(layout.layer)).value("family", layout.family);
        json.value("n_experts", layout.n_experts).value("bytes", layout.expert_bytes).begin_object("types");
        for (const auto & type : layout.types) {
            json.value(type.first.c_str(), type.second);
        }
        json.end_object().end_object();
    }
    json.end_array();
}

void write_model(json_writer & json, const char * key, const known_context & context) {
    json.begin_object(key);
    for (const char * name : { "file", "architecture", "quantization", "sha256" }) {
        put(json, context.fields, name, std::string("model.") + name, "null");
    }
    json.value("fingerprint", context.fingerprint);
    put(json, context.fields, "n_layers", "model.n_layers", std::to_string(context.n_layers));
    uint64_t n_experts = 0;
    for (const expert_layout & layout : context.layouts) {
        n_experts = layout.family == "exps" ? std::max(n_experts, layout.n_experts) : n_experts;
    }
    json.value("n_experts", n_experts).value("top_k", context.top_k);
    write_layouts(json, context);
    json.begin_array("moe_layers");
    int last = -1;
    for (const expert_layout & layout : context.layouts) {
        if (layout.layer != last) {
            json.value(nullptr, static_cast<uint64_t>(layout.layer));
        }
        last = layout.layer;
    }
    json.end_array().begin_array("layers_with_output_rows_only");
    for (const int layer : context.output_row_layers) {
        json.value(nullptr, static_cast<uint64_t>(layer));
    }
    json.end_array().end_object();
}

void write_machine(json_writer & json, const run_state & s, const std::vector<known_context> & contexts,
                   const run_fields_by_name & fields) {
    json.begin_object("llama_cpp").value("ggml_version", MOECACHE_GGML_VERSION);
    put_text(json, "ggml_commit", contexts.empty() ? "" : contexts.front().ggml_commit);
    write_llama_build(json);
    put(json, fields, "llama_cpp_python", "llama_cpp.llama_cpp_python", "null");
    json.end_object();
    if (s.has_cuda) {
        json.begin_object("cuda");
        put_text(json, "runtime", s.cuda_runtime);
        put_text(json, "driver", s.cuda_driver);
        json.end_object();
    } else {
        json.null("cuda");
    }
    put_text(json, "cpu_name", cpu_name());
    json.begin_array("gpu_names");
    std::vector<std::string> said;
    for (const known_context & context : contexts) {
        const std::string name = context.device + ": " + context.gpu;
        if (!context.gpu.empty() && std::find(said.begin(), said.end(), name) == said.end()) {
            said.push_back(name);
            json.value(nullptr, context.gpu);
        }
    }
    json.end_array();
}

// Recording top1_token cuts every graph: durations of such a run say nothing.
void write_top1(json_writer & json, const std::vector<known_context> & contexts) {
    for (const known_context & context : contexts) {
        const auto field = context.fields.find("top1_every");
        if (field != context.fields.end() && field->second != "null") {
            json.raw("top1_every", field->second).raw("timings", "false");
            return;
        }
    }
}

} // namespace

void run_metadata_set(const run_context & context) {
    run_state &                 s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.created     = s.created.empty() ? now_utc() : s.created;
    const auto at = std::find_if(s.contexts.begin(), s.contexts.end(),
                                 [&](const run_context & known) { return known.context_id == context.context_id; });
    if (at != s.contexts.end()) {
        static_cast<run_context &>(*at) = context;
    } else {
        s.contexts.push_back({ context, s.fields });
    }
}

std::string run_metadata_set_field(const std::string & name, const std::string & json) {
    const auto is = [&](const char * known) { return name == known; };
    if (std::none_of(std::begin(run_fields), std::end(run_fields), is) &&
        std::none_of(std::begin(model_fields), std::end(model_fields), is)) {
        return "'" + name + "' is no field of run.json that can be set";
    }
    run_state &                 s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.fields[name] = json;
    // A value may be found out while the newest context runs. What was set before it began stays, null included: the
    // new value is that of the next one. The checksum alone is announced as null.
    if (!s.contexts.empty()) {
        std::string & known  = s.contexts.back().fields[name];
        const bool    awaits = name == "model.sha256" && known == "null";
        known                = known.empty() || awaits ? json : known;
    }
    return "";
}

void run_metadata_set_cuda(const std::string & runtime, const std::string & driver) {
    run_state &                 s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.has_cuda     = true;
    s.cuda_runtime = runtime;
    s.cuda_driver  = driver;
}

static void write_policy(json_writer & json, const std::vector<known_context> & contexts,
                         const run_fields_by_name & fields) {
    const bool cached = !contexts.empty() && !contexts.front().policy.empty();
    if (!cached) {
        put(json, fields, "policy", "policy", "null");
        put(json, fields, "policy_parameters", "policy_parameters", "null");
        return;
    }
    const known_context & context = contexts.front();
    json.value("policy", context.policy).begin_object("policy_parameters").value("n_slots", context.n_slots);
    json.value("per_layer", context.per_layer).value("sync", context.sync).end_object();
}

std::string run_metadata_json(const std::string & folder) {
    run_state &                 s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    const std::string           wanted = !folder.empty() || s.contexts.empty() ? folder : s.contexts.back().folder;
    std::vector<known_context>  contexts;
    for (const known_context & context : s.contexts) {
        const bool is_newest = &context == &s.contexts.back();
        if (wanted.empty() ? is_newest : context.folder == wanted) { // live logs have no folder in common
            contexts.push_back(context);
        }
    }
    if (!contexts.empty()) { // the first one's model stands for all of the same
        std::set<int> layers;
        for (const known_context & context : contexts) {
            if (context.fingerprint == contexts.front().fingerprint) {
                layers.insert(context.output_row_layers.begin(), context.output_row_layers.end());
            }
        }
        contexts.front().output_row_layers.assign(layers.begin(), layers.end());
    }
    const run_fields_by_name & fields = contexts.empty() ? s.fields : contexts.front().fields;
    json_writer                json;
    json.begin_object().value("run_id", routing_run_id());
    json.begin_object("format").value("name", "ggml_moecache routing log").value("version", uint64_t(1)).end_object();
    put_text(json, "created", s.created);
    if (contexts.empty()) {
        json.null("model");
    } else {
        write_model(json, "model", contexts.front());
    }
    json.begin_array("contexts");
    for (const known_context & context : contexts) {
        json.begin_object().value("context_id", context.context_id);
        put_text(json, "file", context.file);
        json.value("device", context.device).value("capacity", context.capacity);
        json.value("session_changes", context.session_changes);
        if (context.fingerprint == contexts.front().fingerprint) {
            json.null("model");
        } else {
            write_model(json, "model", context);
        }
        json.end_object();
    }
    json.end_array();
    write_machine(json, s, contexts, fields);
    put_text(json, "capacity", contexts.empty() ? "" : contexts.front().capacity);
    write_policy(json, contexts, fields);
    for (const char * name : { "seed", "warmup_tokens", "benchmark" }) {
        put(json, fields, name, name, "null");
    }
    write_top1(json, contexts);
    json.value("moecache_version", MOECACHE_VERSION).end_object();
    return json.text();
}

std::string run_metadata_write(const std::string & folder) {
    return file_replace(folder + "/run.json", run_metadata_json(folder) + "\n");
}

} // namespace moecache
