#pragma once
#include <cstdint>

namespace cairn::model {
class Model;
}
namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

struct Settings;

// The number of chunks of the cross entropy of a pass (train.loss_chunks). With 0 in the recipe it is chosen: on a GPU, if chunks are
// allowed, so that the logits of a chunk take at most 0.5 GiB; otherwise 1. `length`: tokens of a sequence.
int64_t loss_chunks_of(const Settings& settings, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu);

}  // namespace cairn::train
