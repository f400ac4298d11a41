// Steps of several passes: their gradients add up with their weights, and an objective may read the outputs of another pass.
#include "train/step_passes.h"

#include <functional>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/losses/consistency.h"
#include "model/model.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::train {
namespace {

// A decoder in double, and one micro-batch of a step.
struct PassTrial {
  std::unique_ptr<model::Model> model = model::make_decoder({.vocab = 17,
                                                             .embed = 12,
                                                             .layers = 2,
                                                             .heads = 2,
                                                             .kv_heads = 1,
                                                             .head_dim = 6,
                                                             .mlp = 14,
                                                             .length = 7,
                                                             .tied = true,
                                                             .dropout = 0.3});
  mesh::FlatLayout layout = model->layout();
  at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  model::Buffers buffers = model->make_buffers(at::kDouble);
  std::shared_ptr<const model::Objective> objective = model::make_next_token();
  model::PassOptions options{.draws_by_token = true};
  mesh::Axes alone;

  PassTrial() {
    model::initialize_parameters(*model, flat, base::Random(3));
    flat.mul_(8);
  }

  struct Found {
    std::vector<model::Losses> losses;
    at::Tensor gradients;
  };
  // The gradient of all passes over `micro_batches` batches of two samples.
  Found run(const std::vector<WeightedPass>& list, const at::Tensor& at, int64_t micro_batches = 1,
            const std::vector<std::string>& measured = {}, bool leave_out = false) {
    const model::FlatWeights weights(layout, at);
    mesh::FlatGradients sink(layout, at::full_like(at, 99.0), model->uses());
    std::vector<parallel::Pass> passes;
    int64_t backward = 0;
    for (const WeightedPass& one : list) backward += one.gradients;
    sink.begin(backward * micro_batches, {}, leave_out);
    const auto with_losses = with_pass_losses(model::make_next_token(), measured);
    const mesh::Batch all = parallel::token_batch(2 * micro_batches, 7, 17);
    for (int64_t i = 0; i < micro_batches; ++i)
      passes.push_back({.model = *model,
                        .at = weights,
                        .buffers = buffers,
                        .axes = alone,
                        .batch = mesh::slice(all, 2 * i, 2 * i + 2),
                        .objective = *with_losses,
                        .into = &sink,
                        .weight = 0.25,
                        .random = base::Random(5),
                        .options = options});
    Found found{.losses = run_passes(list, measured, passes), .gradients = {}};
    sink.finish();
    found.gradients = sink.flat().clone();
    return found;
  }
};

double largest(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

TEST(StepPasses, OneOfThemIsAnOrdinaryPassBitwise) {
  PassTrial trial;
  const PassTrial::Found found = trial.run({WeightedPass{}}, trial.flat);
  const model::FlatWeights weights(trial.layout, trial.flat);
  mesh::FlatGradients sink(trial.layout, at::empty_like(trial.flat), trial.model->uses());
  sink.begin(1, {});
  const model::Losses losses = parallel::execute({.model = *trial.model,
                                                  .at = weights,
                                                  .buffers = trial.buffers,
                                                  .axes = trial.alone,
                                                  .batch = parallel::token_batch(2, 7, 17),
                                                  .objective = *trial.objective,
                                                  .into = &sink,
                                                  .weight = 0.25,
                                                  .random = base::Random(5),
                                                  .options = trial.options});
  sink.finish();
  EXPECT_TRUE(at::equal(found.gradients, sink.flat()));
  EXPECT_EQ(found.losses[0].sum.item<double>(), losses.sum.item<double>());
}

TEST(StepPasses, AddUpWithTheirWeightsAndDrawForThemselves) {
  PassTrial trial;
  const PassTrial::Found first = trial.run({WeightedPass{}}, trial.flat, 2), second = trial.run({{.name = "b", .draw = 1}}, trial.flat, 2);
  EXPECT_NE(first.losses[0].sum.item<double>(), second.losses[0].sum.item<double>());
  const PassTrial::Found both = trial.run({{.name = "a"}, {.name = "b", .weight = -0.5, .draw = 1}}, trial.flat, 2, {"b"});
  EXPECT_LT(largest(both.gradients - (first.gradients - 0.5 * second.gradients)), 1e-12);
  EXPECT_EQ(both.losses[1].sum.item<double>(), first.losses[1].sum.item<double>());
  EXPECT_EQ(both.losses[1].measures.item<double>(), second.losses[1].sum.item<double>());
  const PassTrial::Found alike = trial.run({WeightedPass{}, WeightedPass{}}, trial.flat, 2);
  EXPECT_LT(largest(alike.gradients - 2 * first.gradients), 1e-12);
}

TEST(StepPasses, ALossWithoutGradientsLeavesNone) {
  PassTrial trial;
  const PassTrial::Found first = trial.run({WeightedPass{}}, trial.flat);
  const PassTrial::Found found = trial.run({WeightedPass{}, {.name = "b", .gradients = false}}, trial.flat, 1, {"b"});
  EXPECT_TRUE(at::equal(found.gradients, first.gradients));
  EXPECT_NE(found.losses[0].measures.item<double>(), found.losses[0].sum.item<double>());  // without dropout
}

// Each of two passes reads the other's logits as a constant. What a pass gives must be what it gives alone, with these logits as data.
TEST(StepPasses, ReadEachOthersLogits) {
  PassTrial trial;
  const auto drawn = model::make_consistency(trial.objective, {.own = 1, .agreement = 3});
  const auto other = model::make_consistency(trial.objective, {.own = 0.5, .agreement = 2});
  const std::vector<WeightedPass> list{
      {.name = "a", .objective = drawn.get(), .reads = {{.pass = 1, .as = model::kOtherLogits}}},
      {.name = "b", .objective = other.get(), .draw = 1, .reads = {{.pass = 0, .as = model::kOtherLogits}}}};
  const PassTrial::Found found = trial.run(list, trial.flat);

  // The logits of a pass with these draws.
  class Logits final : public model::Objective {
   public:
    explicit Logits(at::Tensor& into) : into_(into) {}
    Separates separates() const override { return Separates::tokens; }
    model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values*, double, const mesh::Axes&) const override {
      into_ = outputs.get("logits").clone();
      return {.sum = at::zeros({}, batch.ids.options().dtype(at::kDouble))};
    }

   private:
    at::Tensor& into_;
  };
  const model::FlatWeights weights(trial.layout, trial.flat);
  const auto pass = [&](uint64_t draw, const model::Objective& objective, mesh::Gradients* into, const at::Tensor& others) {
    mesh::Batch batch = parallel::token_batch(2, 7, 17);
    if (others.defined()) batch.fields[model::kOtherLogits] = {others, mesh::Field::Shape::whole};
    return parallel::execute({.model = *trial.model,
                              .at = weights,
                              .buffers = trial.buffers,
                              .axes = trial.alone,
                              .batch = batch,
                              .objective = objective,
                              .into = into,
                              .as_training = true,
                              .weight = 0.25,
                              .random = random_of_pass(base::Random(5), draw),
                              .options = trial.options});
  };
  at::Tensor of_first, of_second;
  pass(0, Logits(of_first), nullptr, {});
  pass(1, Logits(of_second), nullptr, {});
  EXPECT_GT(largest(of_first - of_second), 1e-3);
  mesh::FlatGradients sink(trial.layout, at::empty_like(trial.flat), trial.model->uses());
  sink.begin(2, {});
  const model::Losses first = pass(0, *drawn, &sink, of_second);
  pass(1, *other, &sink, of_first);
  sink.finish();
  EXPECT_LT(largest(found.gradients - sink.flat()), 1e-12);
  EXPECT_EQ(found.losses[0].measures[0].item<double>(), first.measures[0].item<double>());
}

// sum over rows of logits . other, with a gradient for both.
class InnerProduct final : public model::Objective {
 public:
  Separates separates() const override { return Separates::tokens; }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch&, model::Values* gradients, double weight,
                         const mesh::Axes&) const override {
    const at::Tensor own = outputs.get("logits"), other = outputs.get("other");
    if (gradients) gradients->add("logits", other * weight), gradients->add("other", own * weight);
    const at::Tensor sum = (own * other).sum();
    return {.sum = sum, .count = at::ones({}, sum.options())};
  }
};
// 0, and it has no gradient of its own.
class NoLoss final : public model::Objective {
 public:
  Separates separates() const override { return Separates::tokens; }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch&, model::Values* gradients, double, const mesh::Axes&) const override {
    const at::Tensor logits = outputs.get("logits");
    if (gradients) gradients->add("logits", at::zeros_like(logits));
    return {.sum = at::zeros({}, logits.options()), .count = at::ones({}, logits.options())};
  }
};

TEST(StepPasses, GiveGradientsToTheOutputsThatTheyRead) {
  PassTrial trial;
  const InnerProduct product;
  const NoLoss none;
  at::Tensor direction = at::empty_like(trial.flat);
  kernels::fill_normal(direction, base::Random(9), 0, 1);
  for (const size_t reader : {0, 1}) {  // the pass that is read comes later, or earlier
    std::vector<WeightedPass> list(2);
    list[reader] = {.name = "reads", .objective = &product, .reads = {{.pass = 1 - reader, .as = "other", .gradient = true}}};
    list[1 - reader] = {.name = "is read", .objective = &none, .draw = 1};
    const auto total = [&](const at::Tensor& at) {
      std::vector<WeightedPass> first = list;
      const PassTrial::Found found = trial.run(first, at, 1, {"reads"});
      return 0.25 * found.losses[0].measures.item<double>();
    };
    constexpr double kStep = 1e-6;
    const double slope = (total(trial.flat + kStep * direction) - total(trial.flat - kStep * direction)) / (2 * kStep);
    EXPECT_NEAR((trial.run(list, trial.flat).gradients * direction).sum().item<double>(), slope, 1e-6 * std::abs(slope)) << reader;
  }
}

TEST(StepPasses, ThatLeaveOutParametersCountAsZeroForThem) {
  PassTrial trial;
  mesh::FlatGradients sink(trial.layout, at::full_like(trial.flat, 99.0), trial.model->uses());
  const std::vector<int32_t> uses = trial.model->uses();
  std::vector<int64_t> announced;
  sink.begin(
      2, [&](int64_t piece) { announced.push_back(piece); }, /*some_leave_out=*/true);
  for (int32_t i = 0; i < static_cast<int32_t>(uses.size()); ++i)
    if (i != 1)
      for (int32_t k = 0; k < (i == 2 ? 1 : 2) * uses[static_cast<size_t>(i)]; ++k)
        sink.add({i}, at::ones(trial.layout.pieces[static_cast<size_t>(i)].shape, at::kDouble));
  EXPECT_EQ(announced.size(), uses.size() - 2);
  sink.finish();
  EXPECT_EQ(announced.size(), uses.size());
  EXPECT_EQ(trial.layout.view(sink.flat(), {0}).max().item<double>(), 2 * uses[0]);
  EXPECT_EQ(largest(trial.layout.view(sink.flat(), {1})), 0);
  EXPECT_EQ(largest(trial.layout.view(sink.flat(), {2}) - uses[2]), 0);
}

TEST(StepPasses, RefusesListsThatCannotRun) {
  PassTrial trial;
  EXPECT_ANY_THROW(trial.run({{.name = "a", .reads = {{.pass = 1, .as = "x"}}}}, trial.flat));
  EXPECT_ANY_THROW(trial.run({{.name = "a", .reads = {{.pass = 0, .as = "x"}}}}, trial.flat));
  EXPECT_ANY_THROW(
      trial.run({{.name = "a", .reads = {{.pass = 1, .as = "x", .gradient = true}}}, {.name = "b", .gradients = false}}, trial.flat));
}

}  // namespace
}  // namespace cairn::train
