#pragma once
#include <memory>

namespace cairn::model {

class WeightFormRule;
struct ModelOptions;

// What the weights of the linear layers are made of, as the recipe says; null: plain parameters. A new form is one line in the list of
// weight_rules.cpp. Refuses two forms at once.
std::shared_ptr<const WeightFormRule> weight_rule(const ModelOptions& options);

}  // namespace cairn::model
