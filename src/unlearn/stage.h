// One stage: adapters on the layers of a stage, trained on the slices so far, upon the frozen base and the frozen stages before.
//
//   model    = base + adapters of stages 0..j-1, frozen;  later layers have none
//   trains   = fresh adapters on the layers of stage j (s3t), or those of stage j-1 on all layers, further (sisa)
//   data     = slices pi_0..pi_j, or pi_j alone; without deleted records
//   random   = f(seed of the store, shard, pi_0..pi_j): nothing counts stages, so a run that never had a record draws the same
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "mesh/named_tensor.h"
#include "unlearn/artifact.h"
#include "unlearn/store.h"

namespace cairn::base {
class Stop;
}
namespace cairn::comm {
class World;
}

namespace cairn::unlearn {

// Which stage is trained, by the names of the artifacts of its order so far; the last one is its own.
using StageChain = std::vector<ArtifactName>;

// How stages are trained here.
struct StageSetup {
  std::string device = "cpu";
  int threads = 1;
};

struct TrainedStage {
  Artifact artifact = {};
  mesh::NamedTensors tensors = {};
  double seconds = 0;
  double examples = 0;  // records, times epochs
};

// The records that a stage reads, without deleted ones. Empty: it cannot be trained.
int64_t records_of_stage(const Store& store, const StageChain& chain);

// The recipe that a stage is trained by, for records in this file.
base::Recipe recipe_of_stage(const Store& store, const ArtifactName& stage, const std::filesystem::path& records, int ranks);

// Collective: every rank of the world calls it, and all return the same. Nothing of it stays on disk.
TrainedStage train_stage(comm::World& world, const Store& store, const StageChain& chain, const StageSetup& setup, const base::Stop& stop);

}  // namespace cairn::unlearn
