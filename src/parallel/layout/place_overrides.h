#pragma once
#include "parallel/options.h"
#include "parallel/plan.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// The dim of "S(1)" or "S1"; -1 for "B". Refuses anything else; `key` names it.
int64_t parse_place(const std::string& key, const std::string& text);

// The entry of plan.place for each parameter that a pattern matches, by name. Refuses patterns that match nothing, with the nearest name,
// and parameters that two patterns place differently.
std::map<std::string, std::string> matched_places(const PlaceOptions& place, const model::Model& model);

// Replaces the placements of those parameters in a plan; a plan without placements first gets those that the blocks would choose. Where a
// block splits the same dim itself, in whole heads, its own split is taken. Nothing happens without ranks along tp.
void apply_overrides(Plan& plan, const model::Model& model, const PlaceOptions& place);

}  // namespace cairn::parallel
