// Pruned weights in a recipe: how a model trains under masks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::model {

// What the weight of a pruned layer is, with the bit mask m, the weight w, and trained factors a [rank, in] and b [out, rank].
enum class SparseForm {
  masked,      // m .* w
  mask_lora,   // m .* (w + alpha / rank b a): a is random and b is 0 at first (MaskLoRA)
  scale_lora,  // m .* w .* (b a): b a is 1 everywhere at first (ScaleLoRA)
  dense        // w: the mask is dropped, and pruned weights train like others
};
inline constexpr base::EnumName<SparseForm> kSparseFormNames[] = {{SparseForm::masked, "masked"},
                                                                  {SparseForm::mask_lora, "mask_lora"},
                                                                  {SparseForm::scale_lora, "scale_lora"},
                                                                  {SparseForm::dense, "dense"}};

// The recipe's model.sparse.* keys. They matter where model.from has masks.
struct SparseOptions {
  SparseForm form = SparseForm::masked;
  int64_t rank = 16;
  double alpha = 32;
  bool keep_zeros = true;
  std::vector<std::string> weights = {};  // no key: the weights of model.from that have a mask, by name
  bool any() const { return !weights.empty() && form != SparseForm::dense; }
  bool operator==(const SparseOptions&) const = default;
};
base::Schema<SparseOptions> sparse_schema();

}  // namespace cairn::model
