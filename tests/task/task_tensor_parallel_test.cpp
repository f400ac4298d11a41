// Tasks along tp: the functions of one process, on DTensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "examples/blobs.h"
#include "examples/examples.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "line_fit.h"
#include "model/decoder/decoder.h"
#include "task/mlp.h"
#include "task/network.h"
#include "task/trainer.h"

namespace cairn::task {
namespace {

using ::testing::HasSubstr;

struct Trained {
  Report report;
  Params params;
  std::map<std::string, TensorRule> rules;
  Metrics metrics;
};

std::vector<examples::Point> points() { return examples::blobs(base::Random(4), base::Random(5), 48, 4, 8, 3); }

Trained train_on(int ranks, int tp, const Task<examples::Point>& task, TrainerOptions options = {}) {
  Trained found;
  options.per_device_batch = 24 / (ranks / tp);
  harness::on_ranks(ranks, [&](comm::World& world) {
    Deployer deployer(world, {.seed = 3, .tp = tp});
    Trainer trainer(deployer, task, mlp({8, 10, 6, 4}, base::Random(6)), options);
    Trained mine{trainer.fit(points()), trainer.params(), trainer.tensor_rules(), trainer.evaluate(points())};
    if (world.rank() == world.size() - 1) found = std::move(mine);
  });
  return found;
}

void expect_same(const Trained& one, const Trained& many, double tolerance) {
  ASSERT_EQ(one.report.steps.size(), many.report.steps.size());
  for (size_t i = 0; i < one.report.steps.size(); ++i) {
    EXPECT_NEAR(many.report.steps[i].loss, one.report.steps[i].loss, tolerance) << "step " << i + 1;
    EXPECT_NEAR(many.report.steps[i].gradient_norm, one.report.steps[i].gradient_norm, 10 * tolerance) << "step " << i + 1;
  }
  for (const mesh::NamedTensor& tensor : one.params.all())
    EXPECT_TRUE(at::allclose(many.params[tensor.name], tensor.tensor, 0, 10 * tolerance)) << tensor.name;
  EXPECT_NEAR(many.metrics.at("eval_loss"), one.metrics.at("eval_loss"), tolerance);
  EXPECT_EQ(many.metrics.at("accuracy"), one.metrics.at("accuracy"));
}

TEST(TaskTensorParallel, GivesTheCurveOfOneRank) {
  const Trained one = train_on(1, 1, examples::classification());
  EXPECT_TRUE(one.rules.empty());
  for (const auto& [ranks, tp] : std::vector<std::pair<int, int>>{{2, 2}, {3, 3}, {4, 2}}) {
    SCOPED_TRACE(fmt::format("{} ranks, tp {}", ranks, tp));
    expect_same(one, train_on(ranks, tp, examples::classification()), 1e-5);
  }
  TrainerOptions sharded;
  sharded.zero = 2;
  expect_same(one, train_on(4, 2, examples::classification(), sharded), 1e-5);
}

TEST(TaskTensorParallel, FollowsTheTwoRules) {
  const std::map<std::string, TensorRule> rules = train_on(2, 2, examples::classification()).rules;
  EXPECT_EQ(rules.at("layers.0.weight").dim, 1);  // [in, out]: by outputs
  EXPECT_EQ(rules.at("layers.0.bias").dim, 1);    // [1, out]: with it
  EXPECT_EQ(rules.at("layers.1.weight").dim, 0);  // by inputs
  EXPECT_EQ(rules.at("layers.1.bias").dim, -1);   // added once, after the sum
  EXPECT_EQ(rules.at("layers.2.weight").dim, 1);
  EXPECT_THAT(rules.at("layers.1.weight").rule, HasSubstr("second of a pair"));
}

// A Llama as a function of tensors: heads by outputs, the projection after them by inputs, as the recipe's tensor parallelism has it.
TEST(TaskTensorParallel, PlacesAttentionAsTheBlocksDo) {
  const Network network(
      model::make_decoder({.vocab = 20, .embed = 8, .layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 2, .mlp = 12, .length = 6}));
  Task<int64_t> task;
  task.collate = [](std::span<const int64_t> starts) {
    std::vector<at::Tensor> rows;
    for (const int64_t start : starts) rows.push_back(at::arange(start, start + 7, at::kLong).remainder(20));
    const at::Tensor all = at::stack(rows);
    return batch_of({{"tokens", all.narrow(1, 0, 6).contiguous()}, {"targets", all.narrow(1, 1, 6).contiguous()}});
  };
  task.loss = [&](const base::Random&, const Params& params, const Batch& batch, bool) {
    return Loss(at::cross_entropy_loss(network.run(params, batch).flatten(0, 1), batch.field("targets").flatten()));
  };
  std::vector<double> losses[2];
  std::map<std::string, TensorRule> rules;
  for (const int tp : {1, 2})
    harness::on_ranks(tp, [&](comm::World& world) {
      Deployer deployer(world, {.seed = 3, .tp = tp});
      Trainer trainer(deployer, task, network.start(base::Random(1)), {.per_device_batch = 4, .learning_rate = 1e-2});
      const Report report = trainer.fit({1, 5, 9, 13, 2, 6, 10, 14});
      if (world.rank() > 0 || tp == 1)
        for (const StepReport& step : report.steps) losses[tp - 1].push_back(step.loss);
      if (world.rank() > 0) rules = trainer.tensor_rules();
    });
  ASSERT_EQ(losses[0].size(), losses[1].size());
  for (size_t i = 0; i < losses[0].size(); ++i) EXPECT_NEAR(losses[1][i], losses[0][i], 1e-5);
  const auto dim_of = [&](const std::string& name) { return rules.at("model.layers.0." + name + ".weight").dim; };
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    EXPECT_EQ(dim_of(name), 0) << name;
  EXPECT_EQ(dim_of("self_attn.o_proj"), 1);
  EXPECT_EQ(dim_of("mlp.down_proj"), 1);
  EXPECT_EQ(dim_of("input_layernorm"), -1);
  EXPECT_EQ(rules.at("model.embed_tokens.weight").dim, 0);
}

// A rank has its part of the parameters and of the optimizer's state.
TEST(TaskTensorParallel, ComputesInBf16AndUpdatesInFp32) {
  TrainerOptions options;
  options.precision = "bf16";
  const Trained one = train_on(1, 1, examples::classification(), options), two = train_on(2, 2, examples::classification(), options);
  for (size_t i = 0; i < one.report.steps.size(); ++i) EXPECT_NEAR(two.report.steps[i].loss, one.report.steps[i].loss, 0.02);
  EXPECT_EQ(two.params["layers.0.weight"].scalar_type(), at::kFloat);
  EXPECT_FALSE(two.params["layers.0.weight"].equal(two.params["layers.0.weight"].to(at::kBFloat16).to(at::kFloat)));
}

class ExampleAlongTp : public testing::TestWithParam<std::string> {};

TEST_P(ExampleAlongTp, ReachesTheSameWithUnchangedSources) {
  for (const examples::Example& example : examples::examples()) {
    if (example.name != GetParam()) continue;
    std::vector<double> reached;
    for (const int tp : {1, 2})
      harness::on_ranks(tp, [&](comm::World& world) {
        Deployer deployer(world, {.seed = 2, .tp = tp});
        const examples::Outcome outcome = example.run(deployer, /*quick=*/true);
        if (world.rank() == tp - 1) reached.push_back(outcome.reached);
      });
    ASSERT_EQ(reached.size(), 2U);
    EXPECT_NEAR(reached[1], reached[0], 0.02 * std::abs(reached[0]));  // an action or a label may flip
    return;
  }
  FAIL() << "no such example";
}

INSTANTIATE_TEST_SUITE_P(Every, ExampleAlongTp, testing::Values("maml", "ppo", "private_sgd", "federated_averaging"),
                         [](const auto& one) { return one.param; });

TEST(TaskTensorParallel, ResumesFromACheckpointOfAnotherLayout) {
  const harness::ScratchFolder scratch;
  TrainerOptions options{.name = "kept", .per_device_batch = 24, .epochs = 2, .learning_rate = 1e-2};
  options.save.last = true;
  const auto fit = [&](int tp, const std::string& folder, int64_t epochs, bool resume) {
    Report report;
    harness::on_ranks(tp, [&](comm::World& world) {
      Deployer deployer(world, {.seed = 3, .out = scratch / folder, .tp = tp});
      TrainerOptions now = options;
      now.epochs = epochs, now.resume = resume, now.steps_total = 4;
      Trainer trainer(deployer, examples::classification(), mlp({8, 10, 4}, base::Random(6)), now);
      const Report own = trainer.fit(points());
      if (world.rank() == 0) report = own;
    });
    return report;
  };
  const Report whole = fit(1, "whole", 2, false);
  fit(1, "cut", 1, false);
  const Report rest = fit(2, "cut", 2, true);
  ASSERT_EQ(rest.steps.size(), 2U);
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(rest.steps[i].loss, whole.steps[i + 2].loss, 1e-5);
}

TEST(TaskTensorParallel, RefusesWhatCannotBe) {
  EXPECT_THAT(refused_on(3, [](Deployer&) {}, {.tp = 2}), HasSubstr("tp = 2: there are 3 ranks"));
  EXPECT_THAT(refused_on(2,
                         [](Deployer& deployer) {
                           Trainer(deployer, examples::classification(), mlp({8, 10, 4}, base::Random(6)), {.optimizer = "muon"});
                         },
                         {.tp = 2}),
              HasSubstr("optimizer muon works on whole matrices, which tp = 2 splits"));
  EXPECT_THAT(refused_on(1,
                         [](Deployer& deployer) {
                           TrainerOptions options;
                           options.precision = "fp16";
                           Trainer(deployer, line_fit(), line_start(), options);
                         }),
              HasSubstr("precision = \"fp16\": must be fp32 or bf16"));
}

}  // namespace
}  // namespace cairn::task
