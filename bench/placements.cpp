// Placements that are inferred against placements that people write, for seven families on six meshes: bytes that all ranks send in one
// pass forward and back. Twice: with weights along tp as the structural rules place them, and with nothing said but where the samples are.
// Both against the best of the layouts in the list.
#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "planner/tensor_parallel/auto_tp.h"
#include "proofs/hand_plans.h"
#include "study/benches.h"

namespace cairn::study {

std::vector<BenchRow> bench_placements(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  for (const PlannedFamily& family : planned_families())
    for (const std::string& mesh : planned_meshes()) {
      planner::Boxing boxing(mesh::parse_mesh(mesh), {});
      std::vector<std::pair<double, std::string>> by_hand;
      for (const HandPlan& plan : hand_plans()) {
        const double bytes = static_cast<double>(place_by_hand(family.graph, boxing, plan).bytes);
        by_hand.emplace_back(bytes, plan.name);
      }
      for (const bool rules : {true, false}) {
        const std::string name = fmt::format("{} {}{}", family.name, mesh, rules ? "" : " free");
        if (!options.only.empty() && options.only != name) continue;
        const auto best = *std::min_element(by_hand.begin(), by_hand.end());
        const planner::InferOptions how{.fixed = rules ? planner::sbp_by_rules(family.graph, boxing.mesh())
                                                       : std::map<std::string, planner::NdSbp>{}};
        const double ours = static_cast<double>(planner::infer(family.graph, boxing, how).bytes);
        rows.push_back(compare(name, {ours / 1e6}, {best.first / 1e6}, "MB", Better::lower, 1 / 1.02));
        log.info("{}: {:.1f} MB, best by hand {:.1f} ({})", name, ours / 1e6, best.first / 1e6, best.second);
      }
    }
  return rows;
}

}  // namespace cairn::study
