#include "task/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "comm/world.h"
#include "harness/scratch_folder.h"
#include "line_fit.h"
#include "snapshot/snapshot.h"

namespace cairn::task {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Checkpoints, AreDueByEpochAndByBestMetric) {
  const SaveOptions save{.every_epochs = 2, .last = true, .argmin = {"loss"}, .argmax = {"accuracy"}};
  Metrics best;
  EXPECT_THAT(folders_due(save, 1, {{"loss", 2}, {"accuracy", 0.5}}, best), ElementsAre("last", "argmin-loss", "argmax-accuracy"));
  EXPECT_THAT(folders_due(save, 2, {{"loss", 3}, {"accuracy", 0.5}}, best), ElementsAre("epochs", "last"));
  EXPECT_THAT(folders_due(save, 3, {{"loss", 1}, {"accuracy", 0.4}}, best), ElementsAre("last", "argmin-loss"));
  EXPECT_THAT(best, ElementsAre(testing::Pair("argmax-accuracy", 0.5), testing::Pair("argmin-loss", 1)));
}

TEST(Checkpoints, SayWhereTheTrainerStands) {
  const TrainerState progress{.step = 12, .epoch = 3, .updates = 4, .seed = ~uint64_t{0}, .best = {{"argmin-loss", 0.125}}};
  EXPECT_EQ(parse_trainer_state(to_json(progress), "x"), progress);
  for (const char* bad : {"", "[]", "{\"step\":-1}", "{\"step\":1,\"epoch\":1,\"updates\":1,\"seed\":1}",
                          "{\"step\":1,\"epoch\":1,\"updates\":1,\"seed\":1,\"best\":{\"a\":\"b\"}}"}) {
    try {
      parse_trainer_state(bad, "some/state.json");
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
      EXPECT_THAT(error.what(), HasSubstr("some/state.json"));
    }
  }
}

struct Trial {
  Report report;
  Params params;
};

Trial trial(const std::filesystem::path& out, int ranks, TrainerOptions options, bool dies = false) {
  Trial found;
  options.per_device_batch = 2, options.global_batch = 12, options.learning_rate = 0.05;
  const auto body = [&](comm::World& world) {
    Deployer deployer(world, {.seed = 3, .out = out});
    Task<Dot> task = line_fit();
    if (dies)
      task.metric = [n = 0](std::span<const Dot>, const Outputs&) mutable -> Metrics {  // once in the check, then after each epoch
        if (++n == 5) throw Error(Error::Kind::cancelled, "enough");
        return {};
      };
    Trainer trainer(deployer, task, line_start(), options);
    Report report = trainer.fit(dots(36), dots(5, 2));
    if (world.rank() == 0) found = {report, trainer.params()};
  };
  harness::on_ranks(ranks, {.expect_errors = dies}, body);
  return found;
}

TEST(Checkpoints, LetATrainerGoOnAfterTheLastSavedEpochOnAnyNumberOfRanks) {
  const harness::ScratchFolder scratch;
  const TrainerOptions options{.epochs = 5, .save = {.every_epochs = 2, .last = true, .argmin = {"eval_loss"}}};
  const Trial whole = trial({}, 1, options);
  for (const int zero : {0, 1}) {
    TrainerOptions first = options;
    first.zero = zero;
    const auto out = scratch / std::to_string(zero);
    trial(out, 2, first, /*dies=*/true);  // after epoch 4 was trained, before it is saved: 3 is the last
    TrainerOptions second = options;
    second.resume = true;
    const Trial rest = trial(out, 3, second);
    ASSERT_EQ(rest.report.epochs.size(), 2u);
    EXPECT_EQ(rest.report.epochs[0].epoch, 4);
    for (size_t i = 0; i < rest.report.steps.size(); ++i) {
      EXPECT_EQ(rest.report.steps[i].step, whole.report.steps[9 + i].step);
      EXPECT_EQ(rest.report.steps[i].learning_rate, whole.report.steps[9 + i].learning_rate);
      EXPECT_NEAR(rest.report.steps[i].loss, whole.report.steps[9 + i].loss, 1e-6);
    }
    for (const mesh::NamedTensor& one : whole.params.all()) EXPECT_TRUE(at::allclose(one.tensor, rest.params[one.name], 0, 1e-6));
  }
  const auto folder = scratch / "0" / "model";
  const auto steps = [&](const char* name) {
    std::vector<int64_t> found;
    for (const snapshot::SnapshotInfo& one : snapshot::list((folder / name).string())) found.push_back(one.step);
    return found;
  };
  EXPECT_THAT(steps("epochs"), ElementsAre(6, 12));
  EXPECT_THAT(steps("last"), ElementsAre(15));
  EXPECT_EQ(steps("argmin-eval_loss").size(), 1u);
  const auto rows = base::read_metrics(folder / "metrics.jsonl");
  std::vector<int64_t> numbered;
  for (const base::MetricsRow& row : rows)
    if (row.has("grad_norm")) numbered.push_back(row.integer("step"));
  EXPECT_THAT(numbered, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

TEST(Checkpoints, AreRefusedUnderAnotherSeed) {
  const harness::ScratchFolder scratch;
  trial(scratch.path(), 1, {.save = {.last = true}});
  EXPECT_THAT(refused_on(1, [](Deployer& deployer) { Trainer(deployer, line_fit(), line_start(), {.resume = true}); },
                         {.seed = 4, .out = scratch.path()}),
              HasSubstr("seed = 4 differs from the 3 that"));
}

}  // namespace
}  // namespace cairn::task
