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

// Logits in parts (train.loss_chunks; model/values.h, ChunkedLogits): refuses what they do not go with.
void check_loss_chunks(const Settings& settings, const parallel::Plan& plan);

// How many parts, of sequences of this length. Where the recipe leaves it open (0): on a GPU so many that the logits of one take half a
// gibibyte at most, where they go with everything else; elsewhere one.
int64_t loss_chunks_of(const Settings& settings, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu);

}  // namespace cairn::train
