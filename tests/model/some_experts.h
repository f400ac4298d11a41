// Experts for the small decoders that tests make of every family.
#pragma once
#include "model/decoder/shape.h"
#include "model/families/families.h"

namespace cairn::model {

// `shape` with experts where its family has them: an odd number, one layer without where the family allows it, and losses of the router,
// which a config.json does not all have.
inline DecoderShape with_experts(DecoderShape shape, bool losses = true) {
  const Family& of = family(shape.family);
  if (!of.has_experts()) return shape;
  shape.experts = {.count = 5,
                   .top_k = 2,
                   .width = of.config.expert_width == "intermediate_size" ? shape.mlp : 7,
                   .shared_width = of.config.shared_expert ? 9 : 0,
                   .normalize = !of.qk_norm_together,
                   .dense_layers = of.config.shared_expert && shape.layers > 1 ? std::vector<int64_t>{0} : std::vector<int64_t>{},
                   .aux_weight = 0.3,
                   .z_weight = losses ? 0.2 : 0};
  return shape;
}

}  // namespace cairn::model
