#include "cli/commands/plan_infer.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"
#include "cli/launch/links.h"
#include "comm/link_model.h"
#include "train/inferred_placements.h"
#include "train/planned.h"

namespace cairn::cli {
namespace {

std::pair<std::string, std::string> split_assignment(const std::string& option, const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) base::fail_input("{} {}: write NAME=VALUE", option, text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

planner::CostModel cost_model_of(const std::vector<std::string>& links) {
  planner::CostModel cost_model;
  for (const std::string& text : links) {
    const auto [axis, value] = split_assignment("--links", text);
    const auto link = parse_links(value);
    if (!link) base::fail_input("--links {}: write AXIS=LATENCY,BANDWIDTH, as in dp=20ms,100Mbit", text);
    cost_model.links[axis] = {std::chrono::duration<double>(link->latency).count(), link->bytes_per_s};
  }
  return cost_model;
}

planner::Overrides overrides_of(const InferRequest& request) {
  planner::Overrides overrides;
  for (const std::string& text : request.places) {
    const auto [pattern, form] = split_assignment("--place", text);
    overrides.push_back({pattern, planner::parse_sbp(form)});
  }
  return overrides;
}

}  // namespace

Inferred inferred_placements(const train::Planned& p, const InferRequest& request) {
  const bool rules = request.how == "rules";
  train::InferredPlacements found = train::infer_placements(p, rules, cost_model_of(request.links), overrides_of(request));
  const planner::PlacedGraph& placed = found.placed;
  std::string text = planner::describe(placed);
  if (rules && placed.cost > 1.5 * found.cheapest)
    text += fmt::format("weights so placed cost {:.1f} times what the cheapest placement does ({}): --infer free shows it\n",
                        placed.cost / found.cheapest, base::human_bytes(found.cheapest_bytes));
  text +=
      "of one pass and its gradients, one micro-batch on every rank. --save FILE: cairn train --plan FILE trains with these parameters.\n";
  return {text, planner::to_json(placed), std::move(found.parameters)};
}

}  // namespace cairn::cli
