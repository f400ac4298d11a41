// What a trainer refuses, and with which words.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "line_fit.h"

namespace cairn::task {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string fit_refused(const std::function<void(Task<Dot>&)>& spoil, const TrainerOptions& options = {}, int64_t examples = 32,
                        int ranks = 1) {
  return refused_on(ranks, [&](Deployer& deployer) {
    Task<Dot> task = line_fit();
    spoil(task);
    Trainer trainer(deployer, task, line_start(), options);
    trainer.fit(dots(examples), dots(5, 2));
  });
}

const auto kAsItIs = [](Task<Dot>&) {};

auto loss_that_gives(const std::function<Loss(const Params&, const Batch&)>& loss) {
  return [loss](Task<Dot>& task) {
    task.loss = [loss](const base::Random&, const Params& params, const Batch& batch, bool) { return loss(params, batch); };
  };
}

TEST(TaskLoss, IsRefusedUnlessItIsAFiniteScalar) {
  EXPECT_THAT(
      fit_refused(loss_that_gives([](const Params& p, const Batch& b) { return line_at(p, b); })),
      HasSubstr("loss returned a tensor of shape [5]: it must be a scalar; return the mean over the batch, or a sum and its weight"));
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params&, const Batch&) { return at::Tensor(); })), HasSubstr("loss returned no tensor"));
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params& p, const Batch& b) { return line_at(p, b).mean() / 0; })),
              HasSubstr("over a weight of 5 for the first 5 examples before training: both must be finite"));
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params& p, const Batch& b) { return Loss(line_at(p, b).sum(), at::zeros({})); })),
              HasSubstr("over a weight of 0"));
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params& p, const Batch& b) { return Loss(line_at(p, b).sum(), at::ones({2})); })),
              HasSubstr("loss returned a weight of shape [2]"));
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params&, const Batch& b) { return b.field("y").mean(); })),
              HasSubstr("loss does not depend on any parameter"));
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params& p, const Batch& b) {
                return at::matmul(b.field("x"), p["w"].squeeze()).mean() + at::ones({2, 3}).matmul(at::ones({2})).sum();
              })),
              HasSubstr("loss failed: "));
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params& p, const Batch&) { return p["weight"].mean(); })),
              HasSubstr("unknown parameter \"weight\""));
  EXPECT_THAT(fit_refused([](Task<Dot>& task) { task.loss = nullptr; }), HasSubstr("trainer \"model\": the task has no loss"));
}

TEST(TaskLoss, ThatStopsBeingFiniteEndsTheRunAtThatStep) {
  const harness::Run run = harness::on_ranks(2, {.expect_errors = true}, [](comm::World& world) {
    Deployer deployer(world);
    Trainer trainer(deployer, line_fit(), line_start(), {.optimizer = "sgd", .learning_rate = 1e20, .schedule = "constant"});
    trainer.fit(dots(64));
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(run.error_on(rank).kind(), Error::Kind::diverged);
    EXPECT_THAT(run.error_on(rank).what(), AllOf(HasSubstr("trainer \"model\": step "), HasSubstr("lower learning_rate")));
  }
}

TEST(TaskFunctions, AreCheckedBeforeTraining) {
  EXPECT_THAT(fit_refused([](Task<Dot>& task) {
                task.predict = [](const base::Random&, const Params&, const Batch&) -> Outputs { return {{"y", at::ones({1})}}; };
              }),
              HasSubstr("predict's output \"y\" is [1]: its first dim must be the batch, 5 examples"));
  const auto metric = [](const std::string& name, double value) {
    return [=](Task<Dot>& task) { task.metric = [=](std::span<const Dot>, const Outputs&) -> Metrics { return {{name, value}}; }; };
  };
  EXPECT_THAT(fit_refused(metric("f1", std::nan(""))),
              HasSubstr("metric \"f1\" is nan: it must be a finite number, for JSON has no others"));
  EXPECT_THAT(fit_refused(metric("loss", 1)), HasSubstr("a metric is called \"loss\", as the trainer calls its own"));
  EXPECT_THAT(fit_refused([](Task<Dot>& task) { task.predict = nullptr; }), HasSubstr("the task has a metric and no predict"));
  EXPECT_THAT(fit_refused([](Task<Dot>& task) { task.collate = [](std::span<const Dot>) {
                                                  return batch_of({{"x", at::ones({3, 1})}});
                                                }; }),
              HasSubstr("collate made field \"x\" of shape [3, 1] from 5 examples: its first dim must be the examples"));
  EXPECT_THAT(fit_refused([](Task<Dot>& task) {
                task.train_step.part = [](const base::Random&, const Params& p, const Batch&) -> TrainStep::Part {
                  return {p.map([](const at::Tensor& t) { return t.unsqueeze(0); }), at::ones({})};
                };
              }),
              HasSubstr("train_step.part gave [1, 1, 1] for parameter \"w\", which is [1, 1]: sum over the examples"));
}

TEST(TaskFunctions, AreNamedWhereAtenRefusesWhatTheyDo) {
  EXPECT_THAT(fit_refused(loss_that_gives([](const Params& p, const Batch& b) {
                const at::Tensor e = p["w"].exp();
                const at::Tensor y = (b.field("x") * e).mean();
                e.add_(1);  // what the gradient needs is gone
                return y + e.sum();
              })),
              HasSubstr("the gradient of loss failed: "));
  EXPECT_THAT(fit_refused([](Task<Dot>& task) {
                task.train_step.part = [](const base::Random&, const Params& p, const Batch&) -> TrainStep::Part {
                  return {p, at::ones({})};
                };
                task.train_step.finish = [](const base::Random&, const Params& sums) {
                  return sums.map([](const at::Tensor& tensor) { return tensor.sum(); });
                };
              }),
              HasSubstr("train_step.finish gave [] for parameter \"w\", which is [1, 1]"));
}

TEST(TrainerOptions, ThatDoNotFitEachOtherAreRefused) {
  EXPECT_THAT(fit_refused(kAsItIs, {.per_device_batch = 8, .global_batch = 20}, 32, 3),
              HasSubstr("global_batch = 20 is no multiple of per_device_batch * dp = 8 * 3 = 24: take 24, or another per_device_batch"));
  EXPECT_THAT(fit_refused(kAsItIs, {.per_device_batch = 4, .global_batch = 20}, 32, 3), HasSubstr("4 * 3 = 12: take 12 or 24"));
  EXPECT_THAT(fit_refused(kAsItIs, {.global_batch = -8}), HasSubstr("take 8, or another"));
  EXPECT_THAT(fit_refused(kAsItIs, {.per_device_batch = 8}, 23, 3),
              HasSubstr("23 examples are fewer than the global batch of 24 (8 on each of 3 ranks, 1 micro-batches)"));
  EXPECT_THAT(fit_refused(kAsItIs, {.per_device_batch = 0}), HasSubstr("per_device_batch = 0: must be at least 1"));
  EXPECT_THAT(fit_refused(kAsItIs, {.epochs = 0}), HasSubstr("epochs = 0: must be at least 1"));
  EXPECT_THAT(fit_refused(kAsItIs, {.warmup_steps = 3, .warmup_ratio = 0.1}),
              HasSubstr("warmup_steps = 3, warmup_ratio = 0.1: one of them"));
  EXPECT_THAT(fit_refused(kAsItIs, {.learning_rate = std::nan("")}), HasSubstr("learning_rate = nan: must be 0 or more"));
  EXPECT_THAT(fit_refused(kAsItIs, {.max_grad_norm = -1}), HasSubstr("max_grad_norm = -1: must be 0 or more"));
  EXPECT_THAT(fit_refused(kAsItIs, {.schedule = "linaer"}), HasSubstr("did you mean \"linear\"?"));
  EXPECT_THAT(fit_refused(kAsItIs, {.optimizer = "adam_w"}), HasSubstr("did you mean \"adamw\"?"));
  EXPECT_THAT(fit_refused(kAsItIs, {.zero = 3}), HasSubstr("zero = 3: must be 0, 1 or 2"));
  EXPECT_THAT(fit_refused(kAsItIs, {.optimizer = "muon", .zero = 1}), HasSubstr("optimizer muon works on whole matrices"));
  EXPECT_THAT(fit_refused(kAsItIs, {.save = {.argmin = {"wrost"}}}),
              HasSubstr("unknown metric to save by \"wrost\": did you mean \"worst\"?"));
  EXPECT_THAT(fit_refused(kAsItIs, {.name = "../x"}), HasSubstr("a trainer is called \"../x\""));
  EXPECT_THAT(fit_refused(
                  [](Task<Dot>& task) {
                    task.train_step.part = [](const base::Random&, const Params& p, const Batch&) -> TrainStep::Part {
                      return {p, at::ones({})};
                    };
                    task.train_step.finish = [](const base::Random&, const Params& sums) { return sums; };
                  },
                  {.zero = 1}),
              HasSubstr("train_step.finish needs whole sums, which zero = 1 shards"));
}

TEST(TrainerOptions, NeedParametersAndNamesOfTheirOwn) {
  EXPECT_THAT(refused_on(1, [](Deployer& deployer) { Trainer(deployer, line_fit(), Params()); }), HasSubstr("no parameters to train"));
  EXPECT_THAT(refused_on(1,
                         [](Deployer& deployer) {
                           Trainer(deployer, line_fit(), Params({{"n", at::ones({1}, at::kLong)}}));
                         }),
              HasSubstr("parameter \"n\" is Long"));
  EXPECT_THAT(refused_on(1,
                         [](Deployer& deployer) {
                           Trainer one(deployer, line_fit(), line_start());
                           Trainer two(deployer, line_fit(), line_start());
                         }),
              HasSubstr("two trainers of one deployer are called \"model\""));
  EXPECT_THAT(refused_on(1,
                         [](Deployer& deployer) {
                           Trainer(deployer, line_fit(), line_start()).reset(Params({{"w", at::ones({1, 1})}}));
                         }),
              HasSubstr("1 parameters for a trainer that has 2"));
  EXPECT_THAT(refused_on(1,
                         [](Deployer& deployer) {
                           Trainer(deployer, line_fit(), line_start()).reset(Params({{"w", at::ones({2, 1})}, {"b", at::ones({1})}}));
                         }),
              HasSubstr("parameter \"w\" is [2, 1], the trainer's is [1, 1]"));
  EXPECT_THAT(refused_on(1, [](Deployer& deployer) { Trainer(deployer, line_fit(), line_start()).evaluate({}); }),
              HasSubstr("no examples to evaluate on"));
  EXPECT_THAT(refused_on(1, [](Deployer&) {}, {.device = "gpu"}), HasSubstr("device \"gpu\": must be cpu or cuda"));
}

TEST(TrainerExamples, MustBeTheSameOnAllRanks) {
  EXPECT_THAT(refused_on(2, [](Deployer& deployer) { Trainer(deployer, line_fit(), line_start()).fit(dots(32 + deployer.replica())); }),
              HasSubstr("rank 0 was given 32 examples, rank 1 33: all ranks must be given the same list"));
}

}  // namespace
}  // namespace cairn::task
