#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sync/sync.h"

namespace cairn::sync {

// The layer of a parameter: the first number among the dotted parts of its name (7 for "model.layers.7.mlp.up_proj.weight"); -1: none.
int64_t layer_of(std::string_view parameter);

// A model split into fragments that travel one after the other (Streaming DiLoCo).
struct Fragments {
  int count = 0;
  std::vector<int> of;  // fragment of each parameter, by index in Replica::model
};

// Splits into fragments of about `layers_each` layers: every n-th layer (strided), or neighbours. Parameters outside of layers form a
// fragment of their own (`extras_own`), or each goes to the smallest fragment so far.
Fragments split_into_fragments(std::span<const FullParameter> model, int64_t layers_each, bool strided, bool extras_own);

// The whole model as one fragment.
Fragments single_fragment(std::span<const FullParameter> model);

}  // namespace cairn::sync
