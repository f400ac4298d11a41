#pragma once
#include <memory>
#include <vector>

#include "mesh/flat_gradients.h"
#include "mesh/flat_layout.h"

namespace cairn::mesh {

// The part of a layout that is trained, in the same order.
FlatLayout trainable_layout(const FlatLayout& all, const std::vector<bool>& chosen);

// A sink for a model of which only some parameters are trained: their contributions go on to a sink of theirs, the others are dropped
// before they are computed. `into` is borrowed and must outlive it.
std::unique_ptr<Gradients> make_trainable_gradients(FlatLayout all, std::vector<bool> chosen, Gradients& into);

}  // namespace cairn::mesh
