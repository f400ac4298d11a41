#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sync/sync.h"

namespace cairn::sync {

// The layer that a parameter belongs to, which is the first number among the parts of its name ("model.layers.7.mlp.up_proj.weight" is of
// layer 7); -1: none.
int64_t layer_of(std::string_view parameter);

// A model cut into pieces that travel one after the other.
struct Fragments {
  int count = 0;
  std::vector<int> of;  // by place in the model
};

// So many layers (about) to a fragment: every so many-th layer (strided), or neighbours. Parameters outside of layers are a fragment of
// their own (`extras_own`), or each goes to the fragment that is smallest so far.
Fragments split_into_fragments(std::span<const FullParameter> model, int64_t layers_each, bool strided, bool extras_own);

// All in one.
Fragments single_fragment(std::span<const FullParameter> model);

}  // namespace cairn::sync
