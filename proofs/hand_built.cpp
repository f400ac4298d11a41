#include "proofs/hand_built.h"

#include <mutex>

#include "base/random.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/local.h"
#include "comm/world.h"
#include "data/shard.h"
#include "kernels/aten.h"
#include "model/decoder.h"
#include "optim/options.h"
#include "parallel/assemble.h"
#include "study/claims.h"
#include "sync/options.h"
#include "train/build.h"
#include "train/engine.h"
#include "train/step.h"

namespace cairn::study {
namespace {

constexpr int64_t kSamples = 12, kLength = 9, kVocab = 37;

mesh::Batch random_batch(uint64_t seed, int64_t step) {
  const base::Random random = base::Random(seed).for_index(static_cast<uint64_t>(step));
  mesh::Batch batch;
  const at::Tensor tokens = at::empty({kSamples, kLength}, at::kLong), targets = at::empty({kSamples, kLength}, at::kLong);
  for (int64_t i = 0; i < kSamples * kLength; ++i) {
    tokens.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i), kVocab));
    targets.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i + 1), kVocab));
  }
  batch.ids = at::arange(kSamples);
  batch.fields["tokens"] = {tokens};
  batch.fields["targets"] = {targets};
  return batch;
}

std::unique_ptr<model::Model> model_with_unused() {
  model::DecoderShape shape;
  shape.vocab = kVocab, shape.embed = 20, shape.layers = 3, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 10, shape.mlp = 23;
  shape.length = kLength, shape.tied = false;
  auto model = model::make_decoder(shape);
  model->add(model::Parameter{.name = "unused.weight", .shape = {7, 11}});
  return model;
}

}  // namespace

Trained train_with_unused(const ProofOptions& options, int ranks, int zero, int64_t steps) {
  Trained trained;
  std::mutex mutex;
  const auto ended = comm::LocalNetwork(ranks).run([&](comm::World& world) {
    train::Engine engine;
    engine.model = model_with_unused();
    engine.objective = model::make_next_token();
    parallel::Plan plan;
    plan.mesh.axes = {{zero > 0 ? "shard" : "dp", ranks}};
    plan.zero = ranks > 1 ? zero : 0;
    const auto format = at::TensorOptions().dtype(at::kFloat);
    engine.store =
        std::make_unique<parallel::Store>(parallel::Store::Parts{.world = world,
                                                                 .model = *engine.model,
                                                                 .plan = plan,
                                                                 .trained = std::vector<bool>(engine.model->parameters().size(), true),
                                                                 .kept = format,
                                                                 .read = format});
    const parallel::Assembly assembly({.world = world, .model = *engine.model, .plan = plan});
    std::vector<optim::Piece> pieces;
    for (const parallel::KeptPiece& piece : engine.store->kept()) {
      engine.kept_views.push_back({piece.name, piece.value});
      engine.gradient_views.push_back({piece.name, piece.gradient});
      pieces.push_back(train::make_piece(engine.model->parameters()[piece.parameter], piece.value, piece.gradient));
    }
    engine.buffers = engine.model->make_buffers(format);
    engine.pieces = static_cast<int64_t>(pieces.size());
    engine.optimizer = optim::make_optimizer({}, std::move(pieces));
    engine.sync = sync::make_sync({}, {world.group(plan.mesh.peers_along(world.rank(), parallel::replicating_axes(plan))), world.alone(),
                                       engine.kept_views, engine.gradient_views});
    engine.micro_batch = 1;
    engine.clip_norm = 1;
    base::Trace trace(world.wall(), world.rank(), 0);
    engine.trace = &trace;
    for (size_t i = 0; i < engine.model->parameters().size(); ++i) {
      const at::Tensor whole = at::empty(engine.model->parameters()[i].shape, at::kFloat);
      model::start_values(engine.model->parameters()[i], whole.view({-1}), base::Random(options.seed));
      engine.store->load(i, whole);
    }
    engine.store->updated();

    const std::unique_ptr<train::Step> step = train::make_step(train::in_turn(parallel::execute));
    std::vector<double> losses, norms;
    for (int64_t s = 1; s <= steps; ++s) {
      const mesh::Batch all = random_batch(options.seed, s);
      const data::Share share = data::share_of(kSamples, world.rank(), world.size());
      const mesh::Batch mine = mesh::slice(all, share.first, share.first + share.count);
      const train::StepOutput output = step->run(engine, {.step = s,
                                                          .batch = mine,
                                                          .tokens = kSamples * kLength,
                                                          .counted = kSamples * kLength,
                                                          .learning_rate = 0.0006,
                                                          .update = s,
                                                          .samples_most = (kSamples + world.size() - 1) / world.size()});
      const at::Tensor loss = output.loss_sum.to(at::kDouble).clone();
      world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait_host();
      losses.push_back(loss.item<double>() / (kSamples * kLength));
      norms.push_back(output.gradient_norm.item<double>());
    }
    Tensors parameters;
    std::vector<at::Tensor> kept(engine.model->parameters().size());
    for (const parallel::KeptPiece& piece : engine.store->kept()) kept[piece.parameter] = piece.value;
    for (size_t i = 0; i < kept.size(); ++i) {
      const model::Parameter& parameter = engine.model->parameters()[i];
      const at::Tensor whole = assembly.trivial() ? kept[i] : assembly.gather(i, kept[i], parameter.name);
      if (whole.defined()) parameters[parameter.name] = whole.view(parameter.shape).clone();
    }
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    trained = {std::move(losses), std::move(norms), std::move(parameters), {}};
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  return trained;
}

}  // namespace cairn::study
