#pragma once
namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

struct Settings;

// Logits in parts (train.loss_chunks; model/values.h, LogitsInParts): refuses what they do not go with.
void check_loss_chunks(const Settings& settings, const parallel::Plan& plan);

}  // namespace cairn::train
