#pragma once
#include <vector>

namespace cairn::model {
class Model;
}
namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

struct Settings;

// Logits in parts (train.loss_chunks; model/values.h, LogitsInParts): refuses what they do not go with.
void check_loss_chunks(const Settings& settings, const parallel::Plan& plan);

// Of what is computed again, by block: not what makes logits. In parts they are not there to be made twice, and it keeps its inputs alone.
void keep_heads(const model::Model& model, std::vector<bool>& recompute);

}  // namespace cairn::train
