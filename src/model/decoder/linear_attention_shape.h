#pragma once
#include <cstdint>
#include <vector>

#include "base/enum_names.h"

namespace cairn::model {

// The sizes of a linear-attention layer, and how its states decay.
struct LinearAttentionShape {
  //   gated     each key dim of each token has its own: g = logsigmoid(gate_up(gate_down(x))) / normalizer (GLA)
  //   constant  one per head, g = log(1 - 2^(-5 - head)) (RetNet, lightning attention)
  //   none      plain linear attention
  enum class Decay { gated, constant, none };
  Decay decay = Decay::gated;
  int64_t heads = 0;                     // 0: as many as softmax attention has, and widths of flash-linear-attention
  int64_t key_dim = 16, value_dim = 32;  // of a head
  int64_t chunk = 64;
  int64_t gate_rank = 16;
  double gate_normalizer = 16;
  std::vector<int64_t> softmax_layers = {};  // hybrid models: the layers that have softmax attention instead, ascending
  bool operator==(const LinearAttentionShape&) const = default;
};

inline constexpr base::EnumName<LinearAttentionShape::Decay> kDecayNames[] = {{LinearAttentionShape::Decay::gated, "gated"},
                                                                              {LinearAttentionShape::Decay::constant, "constant"},
                                                                              {LinearAttentionShape::Decay::none, "none"}};

}  // namespace cairn::model
