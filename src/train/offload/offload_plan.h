// What a rank keeps in which tier (memory.parameters, memory.gradients, memory.optimizer), and the memory that moving it takes. A pure
// function of recipe, model and plan: the dry run prints it, and a run takes its budgets from it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/tier.h"
#include "optim/optimizer.h"
#include "parallel/options.h"
#include "parallel/state/parameter_store.h"
#include "planner/traffic.h"

namespace cairn::train {

struct Settings;

struct OffloadPlan {
  struct Bytes {
    int64_t parameters = 0, gradients = 0, optimizer = 0;
    int64_t total() const { return parameters + gradients + optimizer; }
  };
  std::array<Bytes, memory::kTierKinds> kept;       // between uses, by tier
  int64_t device_working = 0;                       // gathered blocks, and gradients that are being summed
  int64_t gathered = 0;                             // of these
  int64_t host_least = 0, host_working = 0;         // buffers for what is on its way: one group at a time; with what is read ahead
  std::string largest;                              // the group that decides host_least
  int64_t read_per_step = 0, written_per_step = 0;  // by this rank, of the disk

  const Bytes& of(memory::TierKind tier) const { return kept[static_cast<size_t>(tier)]; }
  int64_t device_needed() const { return of(memory::TierKind::device).total() + device_working; }
  int64_t host_needed() const { return of(memory::TierKind::host).total() + host_least; }
};

// Elements that neighbouring blocks join up to in a shard unit. Units that are swapped are those of single blocks.
int64_t min_unit_elements(const parallel::MemoryOptions& memory, const planner::StepRules& rules);

// Gives pieces their groups: those of a unit are together, as far as `group_elements` allows. `units`: by piece.
void assign_groups(std::vector<optim::ParameterPiece>& pieces, const std::vector<int64_t>& units, int64_t group_elements);

OffloadPlan offload_plan(const Settings& settings, const model::Model& model, const parallel::Plan& plan, const planner::StepRules& rules,
                         int rank);

// Refuses budgets that do not hold the plan, with numbers.
void check_offload(const OffloadPlan& plan, const parallel::MemoryOptions& memory);
// The budgets of a run: those of the recipe, or what the plan needs.
int64_t host_bytes(const OffloadPlan& plan, const parallel::MemoryOptions& memory);
int64_t disk_bytes(const OffloadPlan& plan, const parallel::MemoryOptions& memory);

}  // namespace cairn::train
