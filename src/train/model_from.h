#pragma once
#include <optional>

#include "snapshot/pretrained.h"

namespace cairn::base {
class Log;
}
namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// The parameters of the base model, and those of its LoRA adapters.
struct Split {
  mesh::NamedTensors own, adapters;
};
Split split_adapters(const mesh::NamedTensors& parameters);
bool is_adapter(const std::string& parameter);

// The LoRA adapters that the recipe asks for.
model::LoraShape lora_of(const model::LoraOptions& options);

// Opens the directory that model.from names; empty if the key is not set. The text files beside the weights go into the job's snapshots.
std::optional<snapshot::Pretrained> open_model_from(Job& job, base::Log& log);

// Copies its weights into the job's parameters. Collective; refuses ranks that have read different weights.
void start_from(Job& job, const snapshot::Pretrained& pretrained, comm::World& world);

}  // namespace cairn::train
