#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/decoder/weight_form.h"

namespace cairn::model {

// The weights of the MLPs of an elastic decoder: those of a subnet are prefixes of the parameters along the channels in the middle
// (axis "mlp"). `layers`: what the names of each layer's parameters begin with. `widths`: what the channels may be, ascending: along tp
// every rank has an equal part of the channels between two widths, so that all ranks have the same work in every subnet.
std::shared_ptr<const WeightFormRule> make_sliced_rule(std::vector<std::string> layers, std::vector<int64_t> widths);

}  // namespace cairn::model
