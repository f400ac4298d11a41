// Passes through layers whose experts lie along ep, in double: losses and every gradient of one rank that holds all experts.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "model/some_experts.h"
#include "parallel/experts/copied_experts.h"
#include "parallel/experts/expert_exchange.h"
#include "parallel/layout/make_plan.h"
#include "parallel/pass.h"
#include "parallel/state/full_tensor_gather.h"
#include "parallel/token_batch.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kSamples = 5, kLength = 11;

struct ExpertPassCase {
  std::string name;
  MeshOptions mesh;
  int ranks;
  int64_t zero = 0;
  int64_t micro_batch = 2;
  ExpertLayoutOptions options = {};
  bool recompute = false;
  std::string family = "qwen2_moe";
};

model::DecoderShape shape_of(const std::string& family) {
  const model::Family& of = model::family(family);
  return model::with_experts({.vocab = 23,
                              .embed = 12,
                              .layers = 3,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 4,
                              .mlp = 14,
                              .length = kLength,
                              .tied = true,
                              .family = family,
                              .qkv_bias = of.qkv_bias});
}

// Of all experts of a layer, in double.
int64_t expert_bytes(const model::DecoderShape& shape) { return 8 * shape.experts.count * 3 * shape.embed * shape.experts.width; }

struct StepFound {
  double loss = 0;
  mesh::NamedTensors gradients;  // whole, on rank 0
  int64_t copies = 0, calibrated = 0, peak_bytes = 0;
};

// `steps` times the same step: copies of experts begin with the second, when loads are known.
StepFound step_on(comm::World& world, const ExpertPassCase& c, int steps) {
  const auto model = model::make_decoder(shape_of(c.family));
  LayoutOptions layout;
  layout.mesh = c.mesh;
  layout.memory.zero = c.zero;
  Plan plan = make_plan(layout, world.size());
  fit_to_model(plan, *model, {}, kLength);
  ParameterStore store({.world = world,
                        .model = *model,
                        .plan = plan,
                        .trained = std::vector<bool>(model->parameters().size(), true),
                        .master = at::kDouble,
                        .compute = at::kDouble,
                        .gradients = at::kDouble});
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const at::Tensor whole = at::empty(model->parameters()[i].shape, at::kDouble);
    model::initialize_parameter(model->parameters()[i], whole.view({-1}), base::Random(3));
    store.load(i, whole.mul_(10));
  }
  store.updated();
  mesh::Axes axes;
  for (const char* axis : {"cp", "tp", "ep"})
    if (plan.mesh.extent(axis) > 1) axes.put(axis, world.group(plan.mesh.peers(world.rank(), axis)));
  model::PassOptions options;
  if (c.recompute) options.recompute.assign(model->blocks().size(), true), options.recompute.back() = false;
  std::unique_ptr<CopiedExperts> copies;
  std::unique_ptr<model::ExpertExchange> exchange;
  if (places_experts(plan)) {
    comm::Group& group = world.group(plan.mesh.peers(world.rank(), "ep"), "experts");
    if (c.options.placement == ExpertPlacement::fssdp) {
      copies = std::make_unique<CopiedExperts>(CopiedExperts::Parts{.world = world,
                                                                    .model = *model,
                                                                    .plan = plan,
                                                                    .store = store,
                                                                    .counters = world.group(world.everyone().ranks(), "counts"),
                                                                    .nodes = nodes_along(group, c.options),
                                                                    .options = c.options,
                                                                    .costs = {.compute_row = std::chrono::microseconds(1)}});
    }
    exchange = make_expert_exchange(group, c.options, copies.get());
    options.experts = exchange.get();
  }
  const std::vector<int> sharing = plan.mesh.peers_along(world.rank(), kSampleAxes);
  const auto place = static_cast<int>(std::find(sharing.begin(), sharing.end(), world.rank()) - sharing.begin());
  const auto ranks = static_cast<int>(sharing.size());
  const data::BatchRange own = data::replica_range(kSamples, place, ranks);
  const mesh::Batch all = token_batch(kSamples, kLength, 23);
  const auto objective = model::make_next_token();
  model::Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kDouble));
  StepFound found;
  for (int step = 0; step < steps; ++step) {
    std::vector<mesh::Batch> batches;
    for (const data::BatchRange& part : data::micro_batches(own.count, c.micro_batch, (kSamples + ranks - 1) / ranks))
      batches.push_back(mesh::slice(all, own.first + part.first, own.first + part.first + part.count));
    const auto passes = static_cast<int64_t>(batches.size());
    const int64_t with_samples =
        options.experts ? passes : std::count_if(batches.begin(), batches.end(), [](const mesh::Batch& one) { return one.samples() > 0; });
    store.reducer().begin(with_samples, passes, nullptr);
    if (copies) copies->begin();
    at::Tensor loss = at::zeros({1}, at::kDouble);
    for (const mesh::Batch& batch : batches) {
      const Pass pass{.model = *model,
                      .at = copies ? copies->weights() : store.weights(),
                      .buffers = buffers,
                      .axes = axes,
                      .batch = batch,
                      .objective = *objective,
                      .into = copies ? &copies->sink() : &store.sink(),
                      .weight = 1.0 / 17,
                      .context = plan.context,
                      .options = options,
                      .recompute = c.recompute};
      loss.add_(execute(pass).sum.to(at::kDouble));
    }
    if (copies)
      copies->end(), found.copies = copies->copies(), found.calibrated += copies->calibrated(), found.peak_bytes = copies->peak_bytes();
    store.reducer().finish();
    world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait();
    found.loss = loss.item<double>() / plan.mesh.extent("tp");
  }
  comm::Group& replicas = world.group(plan.mesh.peers_along(world.rank(), replicating_axes(plan)), "replicas");
  for (const ParameterSlice& piece : store.pieces()) {
    const at::Tensor sum = piece.gradient.contiguous().clone();
    replicas.all_reduce(sum, comm::Reduce::sum, {comm::Purpose::gradient, piece.name}).wait();
    piece.gradient.copy_(sum);
  }
  const FullTensorGather gather({.world = world, .model = *model, .plan = plan});
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    at::Tensor mine;
    for (const ParameterSlice& piece : store.pieces())
      if (piece.parameter == i) mine = piece.gradient;
    const at::Tensor whole = gather.trivial() ? mine.clone() : gather.gather(i, mine, "gradient", at::kDouble);
    if (world.rank() == 0) found.gradients.push_back({model->parameters()[i].name, whole.view(model->parameters()[i].shape)});
  }
  return found;
}

class ExpertParallelPasses : public testing::TestWithParam<ExpertPassCase> {};

TEST_P(ExpertParallelPasses, GiveTheLossesAndGradientsOfOneRank) {
  const ExpertPassCase& c = GetParam();
  StepFound alone;
  harness::on_ranks(1, [&](comm::World& world) { alone = step_on(world, {.name = "one", .mesh = {}, .ranks = 1, .family = c.family}, 1); });
  harness::on_ranks(c.ranks, [&](comm::World& world) {
    const StepFound found = step_on(world, c, c.options.placement == ExpertPlacement::fssdp ? 3 : 1);
    EXPECT_NEAR(found.loss, alone.loss, 1e-10 * std::abs(alone.loss));
    if (c.options.placement == ExpertPlacement::fssdp) {
      EXPECT_GT(found.copies, 0);  // or the test shows nothing
      EXPECT_EQ(found.calibrated > 0, c.options.calibrate);
      // Of three layers, at most all experts of one: both stacks of weights, in double.
      if (c.options.rematerialize) {
        EXPECT_LE(found.peak_bytes, expert_bytes(shape_of(c.family)));
      }
    }
    double largest = 0;
    for (const mesh::NamedTensor& one : alone.gradients) largest = std::max(largest, one.tensor.norm().item<double>());
    for (size_t i = 0; i < found.gradients.size(); ++i) {
      const double apart = (found.gradients[i].tensor - alone.gradients[i].tensor).norm().item<double>();
      EXPECT_LT(apart, 1e-11 * largest + 1e-10 * alone.gradients[i].tensor.norm().item<double>()) << alone.gradients[i].name;
    }
  });
}

const ExpertLayoutOptions kCopies{.placement = ExpertPlacement::fssdp, .memory_slots = 2};
const ExpertLayoutOptions kCalibrated{.placement = ExpertPlacement::fssdp, .memory_slots = 3, .calibrate = true};
const ExpertLayoutOptions kSentAgain{.placement = ExpertPlacement::fssdp, .memory_slots = 3, .calibrate = true, .rematerialize = true};

INSTANTIATE_TEST_SUITE_P(
    Every, ExpertParallelPasses,
    testing::Values(ExpertPassCase{"ep2", {.ep = 2}, 2}, ExpertPassCase{"ep4_uneven", {.ep = 4}, 4},
                    ExpertPassCase{"ep3_mixtral", {.ep = 3}, 3, 0, 1, {}, false, "mixtral"},
                    ExpertPassCase{"ep5_empty_passes", {.ep = 5}, 5, 0, 1},
                    ExpertPassCase{"dp4_ep2_more_ranks_than_samples", {.dp = 4, .ep = 2}, 8, 0, 1},
                    ExpertPassCase{"ep4_recompute", {.ep = 4}, 4, 0, 1, {}, true}, ExpertPassCase{"dp2_ep2", {.dp = 2, .ep = 2}, 4},
                    ExpertPassCase{"dp2_ep2_zero1", {.dp = 2, .ep = 2}, 4, 1}, ExpertPassCase{"dp2_ep4_zero2", {.dp = 2, .ep = 4}, 8, 2, 1},
                    ExpertPassCase{"dp3_ep2_zero3", {.dp = 3, .ep = 2}, 6, 3}, ExpertPassCase{"tp2_ep2", {.tp = 2, .ep = 2}, 4},
                    ExpertPassCase{"cp2_ep2", {.cp = 2, .ep = 2}, 4}, ExpertPassCase{"cp2_ep3_zero3", {.cp = 2, .ep = 3}, 6, 3, 1},
                    ExpertPassCase{"cp2_tp2_ep2_zero2", {.cp = 2, .tp = 2, .ep = 2}, 8, 2},
                    ExpertPassCase{"by_node", {.ep = 4}, 4, 0, 2, {.dispatch = ExpertDispatch::hierarchical, .node_ranks = 2}},
                    ExpertPassCase{"copies_ep4", {.ep = 4}, 4, 0, 1, kCopies},
                    ExpertPassCase{"copies_dp2_ep4_zero2", {.dp = 2, .ep = 4}, 8, 2, 1, kCopies},
                    ExpertPassCase{"calibrated_ep4", {.ep = 4}, 4, 0, 1, kCalibrated},
                    ExpertPassCase{"sent_again_ep3_recompute", {.ep = 3}, 3, 0, 1, kSentAgain, true},
                    ExpertPassCase{"sent_again_dp2_ep2", {.dp = 2, .ep = 2}, 4, 0, 2, kSentAgain},
                    ExpertPassCase{"copies_tp2_ep2_recompute", {.tp = 2, .ep = 2}, 4, 0, 1, kCopies, true}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace cairn::parallel
