// Traffic of rows to their experts along ep: parallel/experts/expert_exchange.cpp does it. Which experts a token chooses is not known
// beforehand; rows are counted as if every expert were chosen equally often.
#include <algorithm>

#include <fmt/format.h>

#include "model/families/config.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/layout/expert_split.h"
#include "planner/traffic/table.h"

namespace cairn::planner {
namespace {

// A layer's experts: how many there are, and how wide a row is; no experts: 0.
struct ExpertRowsOf {
  int64_t experts = 0, width = 0;
};

ExpertRowsOf experts_of(const model::Model& model, const model::Card& card) {
  for (const mesh::ParamId& id : model::named_parameters(card)) {
    const model::Parameter& one = model.parameters()[static_cast<size_t>(id.first)];
    if (const int64_t dim = parallel::expert_dim(one); dim >= 0) return {one.shape[static_cast<size_t>(dim)], one.shape.back()};
  }
  return {};
}

// Once a step, with ep or without: what the metric expert_load and biases of experts follow.
void add_loads(const TrafficCase& step, TrafficTable& table) {
  int64_t layers = 0, experts = 0;
  for (const auto& block : step.model.blocks())
    if (const ExpertRowsOf of = experts_of(step.model, block->card()); of.experts > 0) ++layers, experts = of.experts;
  const auto ranks = static_cast<int64_t>(parallel::step_group_of(step.plan, step.plan.mesh.members().front()).size());
  if (layers == 0 || ranks == 1) return;
  const int64_t groups = step.plan.mesh.size() / ranks;
  table.add({.what = "tokens of each expert",
             .axis = "all",
             .collective = "all_reduce",
             .shape = {layers, experts},
             .dtype = "int64",
             .times = groups,
             .bytes = groups * all_reduce_bytes(layers * experts * 8, ranks),
             .purpose = comm::Purpose::state,
             .reason = "the load of an expert is that of all ranks"});
}

// Passes without samples, of all ranks: each runs on one sample that nothing counts, whose rows travel too.
MicroBatches ignored_passes(const TrafficCase& step) {
  int64_t passes = step.extent(parallel::kSampleAxes) * step.max_passes;
  for (const MicroBatches& of : step.micro_batches) passes -= of.times;
  return {.samples = 1, .recomputed = step.rules.recompute_last, .times = passes};
}

}  // namespace

bool has_experts(const model::Model& model, const model::Card& card) { return experts_of(model, card).experts > 0; }

void add_expert_parallel(const TrafficCase& step, TrafficTable& table) {
  add_loads(step, table);
  if (!parallel::places_experts(step.plan)) return;
  std::vector<MicroBatches> micro_batches = step.micro_batches;
  if (const MicroBatches ignored = ignored_passes(step); ignored.times > 0) micro_batches.push_back(ignored);
  const int64_t ep = step.extent("ep"), groups = step.plan.mesh.size() / (ep * step.extent("pp"));
  const int64_t top_k = model::parse_config(step.model.config_json(), "the model").experts.top_k;
  const auto recomputes = [&](size_t block) {
    return step.rules.recompute_stage || (!step.rules.recompute.empty() && step.rules.recompute[block]);
  };
  for (size_t i = 0; i < step.model.blocks().size(); ++i) {
    const model::Card& card = step.model.blocks()[i]->card();
    const ExpertRowsOf of = experts_of(step.model, card);
    if (of.experts == 0) continue;
    const std::string name = folded_name(card.name);
    // Ranks without samples in a pass take part in it.
    const int64_t again = !recomputes(i) ? 0 : step.rules.recompute_last ? step.max_passes : step.max_passes - 1;
    const int64_t forwards = (1 + step.rules.reference_passes) * step.max_passes + again, counts = ep * (of.experts + 1);
    table.add({.what = name + ", counts of rows",
               .axis = "ep",
               .collective = "all_gather",
               .shape = {ep, of.experts + 1},
               .dtype = "int64",
               .times = groups * forwards,
               .bytes = groups * forwards * gather_bytes(counts * 8, ep),
               .purpose = comm::Purpose::control,
               .reason = "every rank knows how many rows travel before one does"});
    for (const MicroBatches& batch : micro_batches) {
      const int64_t rows = batch.samples * step.batch.rows * step.batch.length * top_k;
      const int64_t bytes = rows * of.width * step.element_bytes() * (ep - 1) / ep;
      const auto add = [&](const char* when, int64_t times) {
        if (times == 0) return;
        table.add({.what = name + when,
                   .axis = "ep",
                   .collective = "all_to_all",
                   .shape = {rows, of.width},
                   .dtype = step.element_bytes() == 2 ? "bf16" : "fp32",
                   .times = times * batch.times,
                   .bytes = times * batch.times * bytes,
                   .purpose = comm::Purpose::activation,
                   .reason = fmt::format("rows travel to their {} experts and back: expected where all are chosen equally often", top_k),
                   .predicted = false,
                   .expected = true});
      };
      const bool recomputed = batch.recomputed && recomputes(i);
      add(", rows to experts and back, forward", 2 * (1 + step.rules.reference_passes));
      add(", rows to experts and back, forward again (recompute)", recomputed ? 2 : 0);
      add(", gradients of rows, backward", 2);
    }
  }
}

}  // namespace cairn::planner
