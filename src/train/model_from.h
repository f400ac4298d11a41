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

// Whether a tensor is a parameter of an adapter, which snapshots keep beside the base model.
bool is_adapter(const Job& job, const StateTensor& tensor);

// Opens the directory that model.from names; empty if the key is not set. The text files beside the weights go into the job's snapshots.
std::optional<snapshot::Pretrained> open_model_from(Job& job, base::Log& log);

// Copies its weights into the job's parameters. Collective; refuses ranks that have read different weights.
void start_from(Job& job, const snapshot::Pretrained& pretrained, comm::World& world);

}  // namespace cairn::train
