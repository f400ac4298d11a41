#pragma once
#include <memory>
#include <vector>

#include "mesh/flat_gradients.h"
#include "mesh/flat_layout.h"

namespace cairn::mesh {

// The layout of the trained parameters alone, in the same order.
FlatLayout trainable_layout(const FlatLayout& all, const std::vector<bool>& chosen);

// A sink for a model of which only some parameters are trained. It forwards their contributions to `into`, which knows only these, and
// drops the others before their products are computed. `active`: which of the trained ones take contributions now, by index in `all`;
// empty: all of them. `into` is borrowed and must outlive it.
std::unique_ptr<Gradients> make_trainable_gradients(FlatLayout all, std::vector<bool> chosen, Gradients& into,
                                                    std::vector<bool> active = {});

}  // namespace cairn::mesh
