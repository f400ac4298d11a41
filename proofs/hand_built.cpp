#include "proofs/hand_built.h"

#include <mutex>

#include "base/random.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "optim/options.h"
#include "parallel/schedule.h"
#include "parallel/state/full_tensor_gather.h"
#include "sync/options.h"
#include "train/build.h"
#include "train/engine.h"
#include "train/parameter_piece.h"
#include "train/step.h"

namespace cairn::study {
namespace {

parallel::Schedule schedule_of(const HandRun& run, int micro_batches) {
  return parallel::make_schedule(
      {.name = run.schedule, .ranks = run.plan.mesh.extent("pp"), .stages_per_rank = 1, .micro_batches = micro_batches});
}

parallel::Plan plan_of(const HandRun& run, size_t blocks) {
  parallel::Plan plan = run.plan;
  const auto stages = static_cast<size_t>(plan.mesh.extent("pp"));
  if (stages == 1) return plan;
  plan.rank_of_stage = schedule_of(run, static_cast<int>(run.micro_batches)).rank_of_stage;
  for (size_t i = 0; i < stages; ++i) plan.stage_blocks.push_back(static_cast<int64_t>(blocks * (i + 1) / stages - blocks * i / stages));
  return plan;
}

// As a pipeline where there is one, in turn elsewhere.
train::Execution execution_of(const HandRun& run, parallel::Pipeline* pipeline) {
  if (!pipeline) return train::in_turn(parallel::execute);
  return [&run, pipeline](std::span<const parallel::Pass> passes) {
    std::vector<parallel::Pass> own(passes.begin(), passes.end());
    for (size_t i = 0; i < own.size(); ++i)
      own[i].recompute = run.recompute == "always" || (run.recompute == "except_last" && i + 1 < own.size());
    return pipeline->run(own);
  };
}

// Every parameter gets its initial values, the same on any layout.
void initialize(const train::Engine& engine, uint64_t seed) {
  for (size_t i = 0; i < engine.model->parameters().size(); ++i) {
    const at::Tensor whole = at::empty(engine.model->parameters()[i].shape, at::kFloat);
    model::initialize_parameter(engine.model->parameters()[i], whole.view({-1}), base::Random(seed));
    engine.store->load(i, whole);
  }
  engine.store->updated();
}

// The unsharded parameters, on every rank.
Tensors gather_parameters(const train::Engine& engine, const parallel::FullTensorGather& full_tensors) {
  Tensors parameters;
  std::vector<at::Tensor> kept(engine.model->parameters().size());
  for (const parallel::ParameterSlice& piece : engine.store->pieces()) kept[piece.parameter] = piece.value;
  for (size_t i = 0; i < kept.size(); ++i) {
    const model::Parameter& parameter = engine.model->parameters()[i];
    const at::Tensor whole = full_tensors.trivial() ? kept[i] : full_tensors.gather(i, kept[i], parameter.name);
    if (whole.defined()) parameters[parameter.name] = whole.view(parameter.shape).clone();
  }
  return parameters;
}

}  // namespace

mesh::Batch random_tokens(const RandomTokens& of) {
  const base::Random random = base::Random(of.seed).for_index(static_cast<uint64_t>(of.step));
  const at::Tensor tokens = at::empty({of.samples, of.length}, at::kLong), targets = at::empty({of.samples, of.length}, at::kLong);
  const auto vocab = static_cast<uint64_t>(of.vocab);
  for (int64_t i = 0; i < of.samples * of.length; ++i) {
    tokens.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i), vocab));
    targets.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i + 1), vocab));
  }
  mesh::Batch batch;
  batch.ids = at::arange(of.samples);
  batch.fields["tokens"] = {tokens};
  batch.fields["targets"] = {targets};
  return batch;
}

Trained train_by_hand(const HandRun& run) {
  Trained trained;
  std::mutex mutex;
  const auto ended = comm::LocalNetwork(run.plan.mesh.size()).run([&](comm::World& world) {
    train::Engine engine;
    engine.model = run.model();
    engine.objective = run.objective();
    const parallel::Plan plan = plan_of(run, engine.model->blocks().size());
    const mesh::Mesh& mesh = plan.mesh;
    const auto format = at::TensorOptions().dtype(at::kFloat);
    engine.store = std::make_unique<parallel::ParameterStore>(
        parallel::ParameterStore::Parts{.world = world,
                                        .model = *engine.model,
                                        .plan = plan,
                                        .trained = std::vector<bool>(engine.model->parameters().size(), true),
                                        .master = format,
                                        .compute = format});
    const parallel::FullTensorGather full_tensors({.world = world, .model = *engine.model, .plan = plan});
    std::vector<optim::ParameterPiece> pieces;
    for (const parallel::ParameterSlice& piece : engine.store->pieces()) {
      engine.trained.values.push_back({piece.name, piece.value});
      engine.trained.gradients.push_back({piece.name, piece.gradient});
      pieces.push_back(train::make_piece(engine.model->parameters()[piece.parameter], piece.value, piece.gradient));
    }
    engine.buffers = engine.model->make_buffers(format);
    engine.optimizer = optim::make_optimizer({}, std::move(pieces));
    engine.sync = sync::make_sync({}, {world.group(plan.mesh.peers_along(world.rank(), parallel::replicating_axes(plan))), world.alone(),
                                       engine.trained.values, engine.trained.gradients});
    engine.micro_batching.count = run.micro_batches;
    engine.clip_norm = run.clip;
    engine.step_group = &world.everyone();
    engine.options.draws_by_token = true;  // for models that drop
    base::Trace trace(world.wall(), world.rank(), 0);
    engine.trace = &trace;
    initialize(engine, run.seed);

    if (mesh.extent("pp") > 1)
      engine.pipeline = std::make_unique<parallel::Pipeline>(
          *engine.model, plan, parallel::single_pipeline(world.group(mesh.peers(world.rank(), "pp"), "pipeline")),
          [&run](int m) { return schedule_of(run, m); });
    engine.options.recompute_stage = engine.pipeline != nullptr;  // in the passes that execution_of selects
    engine.random = base::Random(run.seed).for_purpose("pass");
    const std::unique_ptr<train::Step> step = train::make_step(execution_of(run, engine.pipeline.get()));
    const std::vector<int> sharing = mesh.peers_along(world.rank(), {"dp", "shard"});
    const auto place = static_cast<int>(std::find(sharing.begin(), sharing.end(), world.rank()) - sharing.begin());
    std::vector<double> losses, norms;
    for (int64_t s = 1; s <= run.steps; ++s) {
      const mesh::Batch all = run.batch(s);
      const auto replicas = static_cast<int>(sharing.size());
      const data::BatchRange share = data::replica_range(all.samples(), place, replicas);
      const mesh::Batch mine = mesh::slice(all, share.first, share.first + share.count);
      const train::StepOutput output = step->run(engine, {.step = s,
                                                          .batch = mine,
                                                          .tokens = run.loss_denominator,
                                                          .loss_denominator = run.loss_denominator,
                                                          .learning_rate = 0.0006,
                                                          .update = s,
                                                          .max_local_samples = (all.samples() + replicas - 1) / replicas});
      const at::Tensor loss = output.loss_sum.to(at::kDouble).clone();
      world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait_host();
      losses.push_back(loss.item<double>() / static_cast<double>(run.loss_denominator));
      norms.push_back(output.gradient_norm.item<double>());
    }
    Tensors parameters = gather_parameters(engine, full_tensors);  // collective
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    trained = {std::move(losses), std::move(norms), std::move(parameters), {}};
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  return trained;
}

}  // namespace cairn::study
