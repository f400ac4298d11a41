#pragma once
#include <string>
#include <vector>

namespace cairn::model {

class Model;

// Which parameters are trained, by index. A pattern is a name in which * stands for anything ("*.lora_*", "*.bias"), or a role
// ("role:norm"). Without patterns: the adapters, and the head of models of pictures, or everything where there are none. Refuses a pattern that matches nothing.
std::vector<bool> trainable(const Model& model, const std::vector<std::string>& patterns);

// The chosen parameters and their neighbours: all parameters that some block reads as one matrix with a chosen one.
std::vector<bool> with_neighbours(const Model& model, std::vector<bool> chosen);

}  // namespace cairn::model
