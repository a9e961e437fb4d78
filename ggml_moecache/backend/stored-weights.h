// The expert weights of a model that a device's store holds, and what tells that model apart from others.
#pragma once

#include "backend/device.h"

#include <map>
#include <string>

namespace moecache {

using stored_weights = std::map<std::string, const ggml_tensor *>; // by name

// Of the whole model graph, which `graph` is or is a part of.
stored_weights find_stored_weights(const ggml_cgraph * graph, const device_context * device);

// 16 hexadecimal digits: FNV-1a over names, shapes, types and samples of the bytes. Of the model's experts on this
// device; another quantization is another model.
std::string fingerprint(const stored_weights & weights);

} // namespace moecache
