#include "core/state-file.h"

#include "core/json-reader.h"
#include "core/json.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

namespace moecache {

static const char * const format_name    = "ggml_moecache session state";
static const int64_t      format_version = 1;
static const size_t       max_bytes      = size_t(1) << 30; // of a file: what is larger is none of ours

// --- write ----------------------------------------------------------------------------------------------------------

template <class Numbers>
static std::string list_of(const Numbers & numbers) {
    std::string text = "[";
    for (const auto number : numbers) {
        text += (text.size() > 1 ? "," : "") + std::to_string(number);
    }
    return text + "]";
}

std::string saved_session_text(const saved_session & saved) {
    json_writer json;
    json.begin_object().begin_object("format").value("name", format_name);
    json.value("version", static_cast<uint64_t>(format_version)).end_object();
    if (!saved.model.empty()) {
        json.value("model", saved.model);
    }
    json.value("policy", saved.state.policy).value("per_layer", saved.per_layer).raw("slots", list_of(saved.slots));
    json.begin_array("columns");
    for (const column_info & column : saved.columns) {
        json.begin_object().raw("layer_id", std::to_string(column.layer_id)).value("family", column.family);
        json.value("n_experts", uint64_t(column.n_experts)).value("expert_bytes", column.expert_bytes).end_object();
    }
    json.end_array().begin_object("arrays");
    for (const auto & [name, values] : saved.state.arrays()) {
        json.raw(name.c_str(), list_of(values));
    }
    json.end_object().end_object();
    return json.text();
}

// --- read -----------------------------------------------------------------------------------------------------------

static bool whole(const json_value * value, int64_t least, int64_t most) {
    return value != nullptr && value->kind == json_kind::whole && value->number >= least && value->number <= most;
}

static std::string read_columns(const json_value & document, std::vector<column_info> & out) {
    const json_value * columns = document.find("columns");
    if (columns == nullptr || !columns->is_array() || !columns->numbers.empty() || columns->items.empty()) {
        return "\"columns\" must be a list of the layers";
    }
    for (size_t i = 0; i < columns->items.size(); i++) {
        const json_value & one     = columns->items[i];
        const json_value * layer   = one.find("layer_id");
        const json_value * family  = one.find("family");
        const json_value * experts = one.find("n_experts");
        const json_value * bytes   = one.find("expert_bytes");
        if (!whole(layer, 0, INT32_MAX) || family == nullptr || family->kind != json_kind::text ||
            !whole(experts, 1, INT32_MAX) || !whole(bytes, 0, INT64_MAX)) {
            return "\"columns\"[" + std::to_string(i) +
                   "] must have layer_id, family, n_experts and expert_bytes, numbers of at least 0";
        }
        column_info column;
        column.layer_id     = static_cast<int32_t>(layer->number);
        column.family       = family->text;
        column.n_experts    = static_cast<uint32_t>(experts->number);
        column.expert_bytes = static_cast<uint64_t>(bytes->number);
        out.push_back(column);
    }
    return "";
}

static std::string read_members(const json_value & document, saved_session & out) {
    const json_value * format = document.find("format");
    const json_value * name   = format != nullptr ? format->find("name") : nullptr;
    if (name == nullptr || name->text != format_name) {
        return std::string("it is no session state: \"format\" does not name it \"") + format_name + "\"";
    }
    if (!whole(format->find("version"), format_version, format_version)) {
        return "its format has another version than " + std::to_string(format_version) +
               ", the one that this version of ggml_moecache reads";
    }
    const json_value * model  = document.find("model");
    const json_value * policy = document.find("policy");
    const json_value * layers = document.find("per_layer");
    const json_value * slots  = document.find("slots");
    const json_value * arrays = document.find("arrays");
    if (policy == nullptr || policy->kind != json_kind::text || layers == nullptr ||
        layers->kind != json_kind::boolean) {
        return "\"policy\" must be a string and \"per_layer\" true or false";
    }
    if (model != nullptr && model->kind != json_kind::text) {
        return "\"model\" must be a string";
    }
    const auto is_slots = [](int64_t n) { return n >= 0 && n <= INT32_MAX; };
    if (slots == nullptr || !slots->is_array_of_whole() ||
        !std::all_of(slots->numbers.begin(), slots->numbers.end(), is_slots)) {
        return "\"slots\" must be a list of numbers of slots";
    }
    if (arrays == nullptr || arrays->kind != json_kind::object) {
        return "\"arrays\" must be an object of lists";
    }
    out.model        = model != nullptr ? model->text : "";
    out.state.policy = policy->text;
    out.per_layer    = layers->truth;
    out.slots.assign(slots->numbers.begin(), slots->numbers.end());
    for (const auto & [key, values] : arrays->members) {
        if (!values.is_array_of_whole()) {
            return "\"arrays\".\"" + key + "\" must be a list of whole numbers of 64 bits";
        }
        out.state.put(key, values.numbers);
    }
    return read_columns(document, out.columns);
}

std::string saved_session_parse(const std::string & text, saved_session & out) {
    json_value  document;
    std::string error = json_parse(text, document);
    if (!error.empty()) {
        return "it is no JSON: " + error;
    }
    out = saved_session();
    return read_members(document, out);
}

static std::string read_text(const std::string & path, std::string & text) {
    std::FILE * file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) {
        return std::strerror(errno);
    }
    char   block[65536];
    size_t n = 0;
    errno    = 0;
    while (text.size() <= max_bytes && (n = std::fread(block, 1, sizeof(block), file)) > 0) {
        text.append(block, n);
    }
    const std::string error = std::ferror(file) != 0 ? std::strerror(errno) : "";
    std::fclose(file);
    return text.size() > max_bytes ? "it has more than 1 GiB" : error;
}

std::string saved_session_read(const std::string & path, saved_session & out) {
    std::string text;
    std::string error = read_text(path, text);
    error             = error.empty() ? saved_session_parse(text, out) : error;
    return error.empty() ? "" : "cannot read a session state from " + path + ": " + error;
}

// --- compare --------------------------------------------------------------------------------------------------------

// A list as a message has it: the first numbers of a long one.
static std::string shown(const std::vector<uint32_t> & numbers) {
    static const size_t most = 8;
    if (numbers.size() <= most) {
        return list_of(numbers);
    }
    std::string text = list_of(std::vector<uint32_t>(numbers.begin(), numbers.begin() + most));
    text.back()      = ',';
    return text + "... " + std::to_string(numbers.size()) + " numbers]";
}

static std::string described(const column_info & column) {
    return "layer " + std::to_string(column.layer_id) + " (" + column.family + "), " +
           std::to_string(column.n_experts) + " experts" +
           (column.expert_bytes == 0 ? "" : " of " + std::to_string(column.expert_bytes) + " bytes");
}

static bool alike(const column_info & a, const column_info & b) {
    return a.layer_id == b.layer_id && a.family == b.family && a.n_experts == b.n_experts &&
           (a.expert_bytes == b.expert_bytes || a.expert_bytes == 0 || b.expert_bytes == 0);
}

std::string saved_session_misfit(const saved_session & saved, const cache_geometry & geometry, bool per_layer,
                                 const std::string & policy, const std::string & model) {
    if (saved.state.policy != policy) {
        return "the session state is of policy " + saved.state.policy + ", this cache's is " + policy;
    }
    for (size_t i = 0; i < std::min(saved.columns.size(), geometry.columns.size()); i++) {
        if (!alike(saved.columns[i], geometry.columns[i])) {
            return "the session state is of another model, or of other layers on the device: it has " +
                   described(saved.columns[i]) + " where this cache has " + described(geometry.columns[i]);
        }
    }
    if (saved.columns.size() != geometry.columns.size()) {
        return "the session state is of another model, or of other layers on the device: it has " +
               std::to_string(saved.columns.size()) + " MoE layers (and families), this cache " +
               std::to_string(geometry.columns.size());
    }
    if (!saved.model.empty() && !model.empty() && saved.model != model) {
        return "the session state is of another model with the same layers and experts: its fingerprint is " +
               saved.model + ", this one's is " + model + " (each quantization has its own)";
    }
    if (saved.per_layer != per_layer) {
        return std::string("the session state is of a cache with slots ") +
               (saved.per_layer ? "for each layer" : "for all layers together") + ", this one has them " +
               (per_layer ? "for each layer" : "for all layers together");
    }
    if (saved.slots != geometry.slots_of_budget) {
        return "the session state is of a cache with " + shown(saved.slots) + " slots, this one has " +
               shown(geometry.slots_of_budget) + "; a state holds for one capacity";
    }
    return "";
}

} // namespace moecache
