#pragma once
#include <string>
#include <vector>

namespace cairn::model {

class Model;

// Which parameters are trained, by place in the model. A pattern is a name in which * stands for anything ("*.lora_*", "*.bias") or a role
// ("role:norm"). No patterns: the adapters where there are some, or else everything. A pattern that fits nothing is refused.
std::vector<bool> trainable(const Model& model, const std::vector<std::string>& patterns);

}  // namespace cairn::model
