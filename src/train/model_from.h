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
struct StateTensor;

// Where snapshots keep a parameter.
enum class ParameterSection {
  model,    // model.safetensors
  adapter,  // beside it: of an adapter
  forms     // beside it: of the form of a weight (model/decoder/weight_form.h), which no ordinary model has
};
ParameterSection section_of(const Job& job, const StateTensor& tensor);
inline constexpr const char* kParameterSections[] = {"model", "adapter", "forms"};

// Opens the directory that model.from names; empty if the key is not set. The text files beside the weights go into the job's snapshots.
std::optional<snapshot::Pretrained> open_model_from(Job& job, base::Log& log);

// Copies its weights into the job's parameters. Collective; refuses ranks that have read different weights.
void start_from(Job& job, const snapshot::Pretrained& pretrained, comm::World& world);

}  // namespace cairn::train
