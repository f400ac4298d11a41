#include "parallel/generate/sharded_encoder.h"

#include <optional>
#include <vector>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/objective.h"
#include "parallel/batch/context_batch.h"
#include "parallel/generate/tensor_messages.h"
#include "parallel/layout/make_plan.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pipeline/stage_edges.h"
#include "parallel/stage_run.h"

namespace cairn::parallel {

class ShardedEncoder::Runner {
 public:
  explicit Runner(const ShardedModel& of) : of_(of), objective_(model::make_next_token()) {
    const mesh::Mesh& mesh = of.plan.mesh;
    const int rank = of.world.rank();
    for (const char* axis : {"tp", "cp"})
      if (mesh.extent(axis) > 1) axes_.put(axis, of.world.group(mesh.peers(rank, axis)));
    if (mesh.extent("pp") > 1) stages_ = &of.world.group(mesh.peers(rank, "pp"));
    const ModelShard shard = model_shard(of.model, of.plan, rank);
    CAIRN_CHECK(shard.stages.size() == 1, "{} pipeline stages on rank {}: an encoder runs one", shard.stages.size(), rank);
    stage_ = shard.stages.front();
    blocks_ = blocks_of_stage(of.plan, stage_, of.model.blocks().size());
    has_vectors_ = blocks_.last == of.model.blocks().size();
    for (const StageEdge& edge : stage_edges(of.model, of.plan)) {
      if (edge.to == stage_) reads_.push_back(edge);
      if (edge.from == stage_) writes_.push_back(edge);
    }
    device_ = of.weights.get({0}).device();
  }

  at::Tensor run(mesh::Batch batch) {
    const at::NoGradGuard no_grad;
    comm::Group* cp = axes_.find("cp");
    const at::Tensor pool = batch.field("pool");
    if (cp) batch.fields.erase("pool");
    Pass pass{.model = of_.model,
              .at = of_.weights,
              .buffers = of_.buffers,
              .axes = axes_,
              .batch = std::move(batch),
              .objective = *objective_,
              .context = of_.plan.context};
    for (const StageEdge& edge : writes_) pass.outputs.push_back(edge.value);
    StageRun stage(pass, blocks_, /*releases=*/false);
    if (cp) stage.put("pool", cut_pool(pool, pass.batch.field("tokens").size(1), *cp));
    for (const StageEdge& edge : reads_) stage.put(edge.value, TensorMessages::receive(*stages_, rank_of(edge.from), edge.value, device_));
    stage.forward();
    if (++passes_ % kPassesInFlight == 0) messages_.flush();
    for (const StageEdge& edge : writes_) messages_.send(*stages_, stage.output(edge.value), rank_of(edge.to), edge.value);
    if (!has_vectors_) return {};
    const at::Tensor vectors = stage.output("vectors").contiguous();
    if (cp) cp->all_reduce(vectors, comm::Reduce::sum, {comm::Purpose::activation, "vectors of texts"}).wait();
    return vectors;
  }

  bool is_first_with_vectors() const {
    if (!has_vectors_) return false;
    const int rank = of_.world.rank();
    return of_.plan.mesh.coordinate(rank, "tp") == 0 && of_.plan.mesh.coordinate(rank, "cp") == 0;
  }
  void finish() { messages_.flush(); }

 private:
  static constexpr int64_t kPassesInFlight = 4;  // whose values wait for the next stage

  // The weights of this rank's positions.
  at::Tensor cut_pool(const at::Tensor& pool, int64_t length, comm::Group& cp) const {
    const model::ContextSplit split = make_context_split(length, cp.size(), of_.plan.context.balanced);
    std::vector<at::Tensor> parts{pool.narrow(2, 0, 0)};
    for (const mesh::Interval& piece : split.pieces[static_cast<size_t>(cp.rank())])
      parts.push_back(pool.narrow(2, piece.begin, piece.length()));
    return at::cat(parts, 2);
  }

  int rank_of(int stage) const { return of_.plan.rank_of_stage[static_cast<size_t>(stage)]; }

  ShardedModel of_;
  std::unique_ptr<model::Objective> objective_;  // never evaluated
  comm::Group* stages_ = nullptr;                // along pp; null: one stage
  mesh::Axes axes_;
  int stage_ = 0;
  BlockRange blocks_;
  bool has_vectors_ = false;
  std::vector<StageEdge> reads_, writes_;  // of this rank's stage
  at::Device device_ = at::kCPU;
  TensorMessages messages_;
  int64_t passes_ = 0;
};

ShardedEncoder::ShardedEncoder(const ShardedModel& of) : runner_(std::make_unique<Runner>(of)) {}
ShardedEncoder::~ShardedEncoder() = default;
at::Tensor ShardedEncoder::vectors(const mesh::Batch& batch) { return runner_->run(batch); }
bool ShardedEncoder::is_first_with_vectors() const { return runner_->is_first_with_vectors(); }
void ShardedEncoder::finish() { runner_->finish(); }

Plan encoding_plan(const mesh::Mesh& mesh, const model::Model& model, int64_t length) {
  LayoutOptions options;
  for (const mesh::Axis& axis : mesh.axes) {
    if (axis.name == "tp")
      options.mesh.tp = axis.size;
    else if (axis.name == "pp")
      options.mesh.pp = axis.size;
    else if (axis.name == "cp")
      options.mesh.cp = axis.size;
    else if (axis.name == "dp")
      options.mesh.dp = axis.size;
    else if (axis.size > 1)
      base::fail_input("--mesh {}: texts are embedded along dp, tp, pp and cp, not along {}; leave {} out", mesh::to_string(mesh),
                       axis.name, axis.name);
  }
  const auto blocks = static_cast<int64_t>(model.blocks().size());
  if (options.mesh.pp > blocks)
    base::fail_input("--mesh {}: {} stages, and the model has {} blocks; use at most pp={}", mesh::to_string(mesh), options.mesh.pp, blocks,
                     blocks);
  Plan plan = make_plan(options, mesh.size());
  plan.micro_batches = options.mesh.pp;  // for the schedule, of which an encoder uses the stages alone
  plan.zero = 0;                         // every rank along cp keeps all of its parameters: nothing is trained
  try {
    fit_to_model(plan, model, {}, length);
  } catch (Error& error) {
    throw error.with(fmt::format("--mesh {}", mesh::to_string(mesh)));
  }
  return plan;
}

}  // namespace cairn::parallel
