// Placements of experts (`cairn experts place`) for the directory of a model.
#pragma once
#include <string>

#include "model/model.h"
#include "parallel/generate/sharded_generator.h"
#include "planner/experts/placement_file.h"
#include "snapshot/pretrained.h"

namespace cairn::cli {

// What a placement for this model on `ranks` ranks along ep is made for. The model's hash is over its config.json and its routers, which
// decide where tokens go.
planner::PlacementTarget placement_target(const snapshot::Pretrained& opened, const model::Model& model, int ranks);

// The tables of a placement file. Refuses one that was made for another model or mesh.
parallel::ExpertTables read_expert_tables(const std::string& file, const planner::PlacementTarget& target);

}  // namespace cairn::cli
