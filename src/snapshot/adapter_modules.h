// Adapters in modules (model/decoder/adapter_matrix.h) as ordinary ones.
#pragma once
#include "base/json.h"
#include "snapshot/adapter.h"

namespace cairn::snapshot {

// The same function as an ordinary adapter, bottleneck or LoRA: w = sum of the modules / N, and so are biases. Others are given back as
// they are. Refuses modules that do not make up a matrix.
Adapter merge_modules(const Adapter& adapter);

// The entry "mosa" of adapter_config.json, and what it says.
base::OrderedJson modules_json(const model::AdapterShape& adapter);
void read_modules_json(const base::Json& json, model::AdapterShape& into, const std::string& path);

// The text of the adapter_config.json of bottleneck adapters, and what it says.
std::string format_bottleneck_config(const model::AdapterShape& adapter, const std::string& base_model);
model::AdapterShape parse_bottleneck(const base::Json& json, const std::string& path);

}  // namespace cairn::snapshot
