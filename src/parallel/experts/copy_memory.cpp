#include "parallel/experts/copy_memory.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/text.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/layout/expert_split.h"
#include "parallel/layout/model_shard.h"

namespace cairn::parallel {

CopyMemory copy_memory(const model::Model& model, const Plan& plan, const ExpertLayoutOptions& options) {
  CopyMemory memory;
  const std::vector<int> stages = rank_of_blocks(plan, model.blocks().size());
  std::map<int, int64_t> layers;  // by rank along pp
  for (size_t b = 0; b < model.blocks().size(); ++b) {
    int64_t bytes = 0;
    for (const mesh::ParamId& id : model::named_parameters(model.blocks()[b]->card())) {
      const model::Parameter& one = model.parameters()[static_cast<size_t>(id.first)];
      const int64_t dim = expert_dim(one);
      if (dim < 0) continue;
      memory.experts = one.shape[static_cast<size_t>(dim)];
      bytes += one.elements() / memory.experts * compute_bytes(plan);
    }
    if (bytes > 0) ++layers[stages[b]];
    memory.expert_bytes = std::max(memory.expert_bytes, bytes);
  }
  for (const auto& [stage, count] : layers) memory.layers = std::max(memory.layers, count);
  if (options.rematerialize) memory.layers = std::min<int64_t>(memory.layers, 1);
  const int64_t ranks = plan.mesh.extent("ep");
  memory.own = (memory.experts + ranks - 1) / ranks;
  return memory;
}

int64_t bytes_of_copies(const CopyMemory& memory, int64_t slots) {
  const int64_t held = std::min(slots, memory.experts - memory.own);  // there is nothing more to copy
  return held > 0 ? (memory.own + held) * memory.layers * memory.expert_bytes : 0;
}

void check_copies_fit(const CopyMemory& memory, int64_t slots, int64_t free_bytes) {
  const int64_t of_slot = memory.layers * memory.expert_bytes, held = std::min(slots, memory.experts - memory.own);
  const int64_t needed = bytes_of_copies(memory, slots);
  if (needed <= free_bytes) return;
  const int64_t fit = std::max<int64_t>(0, free_bytes / of_slot - memory.own);
  base::fail_input(
      "expert.memory_slots = {}: with {} copies and {} experts of its own in each of {} layers at once, a rank needs {}, and {} are free: "
      "{} "
      "fit. Lower it, or use expert.placement = ep.",
      slots, held, memory.own, memory.layers, base::human_bytes(needed), base::human_bytes(free_bytes), fit);
}

}  // namespace cairn::parallel
