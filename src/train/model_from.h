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

// A model's own parameters, and those of its adapters.
struct Split {
  mesh::NamedTensors own, adapters;
};
Split split_adapters(const mesh::NamedTensors& parameters);
bool is_adapter(const std::string& parameter);

// The adapters that the recipe asks for.
model::LoraShape lora_of(const model::LoraOptions& options);

// Opens the directory that model.from names; nothing where it names none. What lies beside the weights goes into the job's snapshots.
std::optional<snapshot::Pretrained> open_model_from(Job& job, base::Log& log);

// Puts its weights into the job's parameters. All ranks call it, and must have read the same.
void start_from(Job& job, const snapshot::Pretrained& pretrained, comm::World& world);

}  // namespace cairn::train
