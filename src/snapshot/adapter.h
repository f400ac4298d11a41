// Low-rank adapters as PEFT keeps them: adapter_config.json and adapter_model.safetensors beside each other.
#pragma once
#include <map>
#include <string>

#include "mesh/named_tensor.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/shape.h"
#include "snapshot/weight_files.h"

namespace cairn::base {
class Disk;
}

namespace cairn::snapshot {

// One adapter: its shape and its tensors under the names of the model's parameters: ".lora_A.weight" and ".lora_B.weight" behind a layer's,
// pools that layers share (adapter_pools.h), modules (adapter_modules.h), or those of bottleneck adapters.
struct Adapter {
  model::AdapterShape shape;
  mesh::NamedTensors tensors;
  std::string path = {};            // where it was read, for messages
  std::string index_checksum = {};  // of pools: that of the indices with which it was trained
};

// Throws bad_input for anything but plain LoRA (DoRA, biases, other saved modules, ranks that differ from layer to layer), naming the key.
Adapter read_adapter(const std::string& folder);
// The adapter in a snapshot's training folder.
Adapter read_snapshot_adapter(const std::string& training);
// A directory that `peft` opens, or an adapter_config.json of Cairn's own for bottleneck adapters. Pools are written as the layers' own
// matrices, and beside them as they are; modules are merged.
void write_adapter(const std::string& folder, const Adapter& adapter, const model::DecoderShape& shape, const std::string& base_model,
                   const base::Disk& disk);

// Of a model of pictures, a bottleneck adapter with the model's head, which is trained beside it. Other adapters as they are.
struct Pretrained;
Adapter with_head(const Adapter& adapter, const Pretrained& trained);

// The text of its adapter_config.json; of pools with an entry "mos".
std::string format_adapter_config(const model::AdapterShape& adapter, const model::DecoderShape& shape, const std::string& base_model);

// Refuses an adapter that fits no layer of a model of this shape.
void check_adapter(const Adapter& adapter, const model::DecoderShape& shape);

// W += scale B A for each layer that has an adapter, in place; `undo` subtracts it. Throws bad_input where an adapter fits no layer.
enum class AdapterMerge { add, undo };
void merge_adapter(const mesh::NamedTensors& parameters, const Adapter& adapter, const model::DecoderShape& shape,
                   AdapterMerge merge = AdapterMerge::add);

// Copies a bottleneck adapter, with its modules merged, into the parameters that have its names, and removes these from `parameters`.
// Throws bad_input where they are not all there.
void load_unmerged(const Adapter& adapter, mesh::NamedTensors& parameters);

}  // namespace cairn::snapshot
