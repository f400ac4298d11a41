// Pools that the layers of a model share (MoS), as the matrices of a LoRA adapter of each layer.
#pragma once
#include <string>

#include "base/json.h"
#include "snapshot/adapter.h"

namespace cairn::snapshot {

// Its tensors under the names of LoRA adapters: those of an ordinary adapter as they are, pools taken apart. Refuses pools of another model
// or index.
mesh::NamedTensors low_rank_tensors(const Adapter& adapter, const model::DecoderShape& shape);

// Equal where layers take the same pieces of pools.
std::string index_checksum(const model::AdapterShape& adapter, int64_t layers);

// The entry "mos" of an adapter_config.json, and back. `path`: for messages.
base::OrderedJson pools_json(const model::AdapterShape& adapter, int64_t layers);
void read_pools_json(const base::Json& json, Adapter& into, const std::string& path);

}  // namespace cairn::snapshot
