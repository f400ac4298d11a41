#pragma once
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "mesh/ragged.h"
#include "model/generate/generate.h"
#include "model/model.h"
#include "parallel/generate/expert_stage.h"
#include "parallel/layout/model_shard.h"
#include "parallel/plan.h"

namespace cairn::comm {
class World;
}

namespace cairn::parallel {

// A model that lies on several ranks, as one of them sees it. Borrowed.
struct ShardedModel {
  comm::World& world;
  const model::Model& model;
  const Plan& plan;               // of generation_plan(); axes tp, pp and ep shard it, the others hold replicas
  const model::Weights& weights;  // this rank's shards (layout/model_shard.h), with their placements
  model::Buffers& buffers;
  // How long a rank that follows waits for the next call of the rank that drives.
  std::chrono::nanoseconds idle = std::chrono::hours(1);
  ExpertFlow flow = ExpertFlow::ep;  // where experts lie along ep
};

// Memory for one rank's shards of a model's parameters, for ShardedModel::weights, and their placements; the values are the caller's.
std::unique_ptr<model::FlatWeights> allocate_shards(const model::Model& model, const Plan& plan, const ModelShard& shard,
                                                    const at::TensorOptions& options);

// Generation with a model that is sharded along tp, pp and ep. Each rank keeps its part of the KV cache: the heads of its coordinate along
// tp, the layers of its pipeline stage; along ep, its sequences (ExpertFlow::ep) or all of them (exflow).
//
// One rank of each replica drives, the first: it calls generate() as often as it likes, then close(). The others follow: they call
// follow(), which takes part in every generate() and returns at close(). An error on the driving rank ends the others through
// World::fail.
class ShardedGenerator {
 public:
  explicit ShardedGenerator(const ShardedModel& of);
  ~ShardedGenerator();
  ShardedGenerator(const ShardedGenerator&) = delete;
  ShardedGenerator& operator=(const ShardedGenerator&) = delete;

  bool drives() const;
  // As model::generate: the tokens of one rank, up to rounding. Sequences at the same position share a call, and with it the all-reduces.
  std::vector<model::GeneratedText> generate(std::span<const model::GenerateRequest> requests, const model::GenerateOptions& options,
                                             const model::OnToken& on_token = {});
  void close();
  void follow();
  // Of this rank since the last generate() began; zeros without ep.
  ExpertTraffic expert_traffic() const;

 private:
  class Runner;
  std::unique_ptr<Runner> runner_;
};

// How experts lie along ep: a table for each layer with experts, in order; empty: by their ids, evenly.
using ExpertTables = std::vector<mesh::Ragged>;

// The plan of generation on a mesh of tp, pp and ep ("tp=2,pp=2"): one stage per rank along pp. Throws bad_input, naming the mesh, for
// other axes and for what the model does not allow.
Plan generation_plan(const mesh::Mesh& mesh, const model::Model& model, const ExpertTables& experts = {});

}  // namespace cairn::parallel
