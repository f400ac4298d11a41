#pragma once
#include <string>
#include <vector>

namespace cairn::model {

class Model;

// Which parameters are trained, by index. A pattern is a name in which * stands for anything ("*.lora_*", "*.bias"), or a role
// ("role:norm"). Without patterns: the adapters, or everything where there are none. Refuses a pattern that matches nothing.
std::vector<bool> trainable(const Model& model, const std::vector<std::string>& patterns);

}  // namespace cairn::model
