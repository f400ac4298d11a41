#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::model {

// LoRA adapters on linear layers (arXiv:2106.09685): w + scale b a with a [rank, in] and b [out, rank]. Only a and b are trained.
struct LoraShape {
  int64_t rank = 0;  // 0: none
  double alpha = 16;
  std::vector<std::string> targets = {"q_proj", "v_proj"};  // layer names or their last parts; * stands for anything
  bool by_root = false;                                     // rsLoRA: the scale is alpha / sqrt(rank), not alpha / rank
  bool operator==(const LoraShape&) const = default;

  double scale() const;
  bool targets_module(const std::string& module) const;
};

// The recipe's model.lora.* keys.
struct LoraOptions {
  int64_t rank = 0;
  double alpha = 16;
  std::vector<std::string> targets = {"q_proj", "v_proj"};
  std::string from;  // an adapter in PEFT's format to start from
};
base::Schema<LoraOptions> lora_schema();

// Whether `name` matches `pattern`, in which * stands for any characters.
bool matches(const std::string& pattern, const std::string& name);

}  // namespace cairn::model
