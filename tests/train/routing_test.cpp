// Islands with pipelines whose micro-batches are routed between them (pipeline.routing = random).
#include <filesystem>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "ended_models.h"
#include "harness/scratch_folder.h"
#include "small_decoder.h"
#include "train/build.h"
#include "train/settings.h"
#include "train/train.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using Sets = std::vector<std::string>;

base::Recipe piped(Sets sets, const Sets& more) {
  sets.insert(sets.end(), {"train.steps=12", "snapshot.every=4", "train.global_batch=12", "mesh.pp=2", "pipeline.micro_batches=4"});
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

const Sets kPairedIslands{"mesh.island=3", "sync.island.kind=noloco", "sync.island.every=4"};

// Sum over the islands' metrics of a step.
double loss_of_all(const std::filesystem::path& out, size_t step) {
  double sum = 0;
  for (const char* island : {".", "island-1", "island-2"}) sum += base::read_metrics(out / island / "metrics.jsonl")[step].number("loss");
  return sum;
}

std::string routing_in(const std::filesystem::path& out) {
  const base::Json plan = base::parse_json(base::read_file(out / "plan.json", 1 << 20));
  return plan["pipeline"].contains("routing") ? plan["pipeline"]["routing"].get<std::string>() : "fixed";
}

TEST(Routing, ChangesNothingIfAllIslandsAreIdentical) {
  const harness::ScratchFolder folder;
  const Sets sgd{"optim.kind=sgd", "optim.learning_rate=0.05", "optim.max_grad_norm=0", "mesh.island=3"};
  train_on(6, piped(sgd, {}), folder.path() / "ddp");
  // An average after every step keeps them identical.
  train_on(6,
           piped(sgd, {"sync.island.kind=diloco", "sync.island.every=1", "sync.island.outer_lr=1", "sync.island.outer_momentum=0",
                       "pipeline.routing=random"}),
           folder.path() / "routed");
  EXPECT_EQ(routing_in(folder.path() / "routed"), "random");
  EXPECT_LT(furthest(model_of(folder.path() / "ddp"), model_of(folder.path() / "routed")), 1e-6);
}

TEST(Routing, IsRandomWithNolocoAndMakesAnotherModel) {
  const harness::ScratchFolder folder;
  train_on(6, piped(kPairedIslands, {}), folder.path() / "auto");
  train_on(6, piped(kPairedIslands, {"pipeline.routing=fixed"}), folder.path() / "fixed");
  EXPECT_EQ(routing_in(folder.path() / "auto"), "random");
  EXPECT_EQ(routing_in(folder.path() / "fixed"), "fixed");
  // At the first step all islands are identical, so only the assignment of samples differs: labels are routed with their samples.
  EXPECT_NEAR(loss_of_all(folder.path() / "auto", 0), loss_of_all(folder.path() / "fixed", 0), 1e-5);
  EXPECT_GT(furthest(model_of(folder.path() / "auto"), model_of(folder.path() / "fixed")), 1e-4);
}

TEST(Routing, IsTheSameWithRanksAlongTpAndShard) {
  const harness::ScratchFolder folder;
  const Sets two{"mesh.island=2", "sync.island.kind=noloco", "sync.island.every=4"};
  train_on(4, piped(two, {}), folder.path() / "plain");
  train_on(8, piped(two, {"mesh.tp=2"}), folder.path() / "tp");
  EXPECT_EQ(routing_in(folder.path() / "tp"), "random");
  EXPECT_LT(furthest(model_of(folder.path() / "plain"), model_of(folder.path() / "tp")), 3e-5);
}

TEST(Routing, GoesOnWhereItWasInterrupted) {
  const harness::ScratchFolder folder;
  const std::filesystem::path straight = folder.path() / "straight", cut = folder.path() / "cut";
  train_on(6, piped(kPairedIslands, {}), straight);
  train_on(6, piped(kPairedIslands, {}), cut);
  for (const char* later : {"snapshots", "island-1/snapshots", "island-2/snapshots"})
    ASSERT_GT(std::filesystem::remove_all(cut / later / "step-00000012"), 0U);
  train_on(6, piped(kPairedIslands, {}), cut, /*resume=*/true);
  for (const char* of : {".", "island-1", "island-2"}) EXPECT_EQ(furthest(model_of(straight / of), model_of(cut / of)), 0) << of;
}

TEST(Routing, RefusesWhatCannotWork) {
  const auto refusal = [](const Sets& sets, int ranks) -> std::string {
    try {
      check_recipe(small_decoder("llama", sets), ranks);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const Sets random{"pipeline.routing=random", "mesh.pp=2", "mesh.island=2", "train.global_batch=8"};
  const auto with = [&](Sets more) {
    more.insert(more.begin(), random.begin(), random.end());
    return more;
  };
  EXPECT_EQ(refusal(with({"sync.island.kind=noloco"}), 4), "");
  EXPECT_NE(refusal({"pipeline.routing=random", "mesh.island=2", "sync.island.kind=noloco"}, 2).find("there is no pipeline"),
            std::string::npos);
  EXPECT_NE(refusal(with({}), 4).find("is for islands that step separately"), std::string::npos);
  EXPECT_NE(refusal(with({"sync.island.kind=diloco", "sync.island.pace=own"}), 4).find("leave sync.island.pace out"), std::string::npos);
  EXPECT_NE(refusal(with({"sync.island.kind=noloco", "train.global_batch=9"}), 4).find("a multiple of 2"), std::string::npos);
  EXPECT_NE(refusal({"pipeline.routing=random", "mesh.pp=2", "sync.island.kind=diloco", "island.number=0", "island.count=2",
                     "island.meet=127.0.0.1:1"},
                    2)
                .find("use mesh.island in one run"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn::train
