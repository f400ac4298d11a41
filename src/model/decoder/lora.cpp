#include "model/decoder/lora.h"

#include <algorithm>
#include <cmath>

namespace cairn::model {

double LoraShape::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (by_root ? std::sqrt(r) : r);
}

bool LoraShape::targets_module(const std::string& module) const {
  return rank > 0 && std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
           return matches(target, module) || (module.size() > target.size() && matches("*." + target, module));
         });
}

base::Schema<LoraOptions> lora_schema() {
  using O = LoraOptions;
  return {"model.lora",
          "LoRA adapters on the linear layers of model.from. Only the adapters are trained.",
          {{"rank", &O::rank, "Rank of the adapters; 0: none.", base::between(0, 65536), {"r"}},
           {"alpha", &O::alpha, "Adapters are scaled by alpha / rank.", base::more_than(0), {"lora_alpha"}},
           {"targets",
            &O::targets,
            "Layers with an adapter: names or their last parts (\"q_proj\"), * for anything. GPT-2 has c_attn, c_fc and c_proj.",
            base::any(),
            {"target_modules"}},
           {"from", &O::from,
            "A directory with an adapter in PEFT's format to continue from. It sets the other keys here. Empty: a new adapter.",
            base::path()}}};
}

// Greedy matching with backtracking to the last *.
bool matches(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace cairn::model
