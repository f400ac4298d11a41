// Islands that step separately: their results, in any layout, and after interruptions.
#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "ended_models.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "small_decoder.h"
#include "snapshot/snapshot.h"
#include "train/settings.h"
#include "train/train.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using Sets = std::vector<std::string>;

base::Recipe islands(Sets sets, const Sets& more = {}) {
  sets.insert(sets.end(), {"train.steps=12", "snapshot.every=4", "train.global_batch=8"});
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

const Sets kDiloco{"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=4"};
const Sets kStreaming{"mesh.island=2",           "sync.island.kind=streaming_diloco", "sync.island.every=4",
                      "sync.island.delay=1",     "sync.island.fragment_layers=1",     "sync.island.wire=fp32",
                      "sync.island.outer_lr=0.4"};

const Sets kNoloco{"mesh.island=2", "sync.island.kind=noloco", "sync.island.every=4"};
const Sets kCo2{"mesh.island=2", "sync.island.kind=co2", "sync.island.every=3"};
const Sets kGossip{"mesh.island=2", "sync.island.kind=gossip", "sync.island.every=3", "sync.island.neighbours=0.5"};

TEST(Islands, WithAnAverageAfterEveryStepOfSgdAreOneReplicaSet) {
  const harness::ScratchFolder folder;
  const Sets sgd{"optim.kind=sgd", "optim.learning_rate=0.05", "optim.max_grad_norm=0"};
  train_on(2, islands({"mesh.island=2"}, sgd), folder.path() / "ddp");
  Sets each = sgd;
  each.insert(each.end(), {"sync.island.kind=diloco", "sync.island.every=1", "sync.island.outer_lr=1", "sync.island.outer_momentum=0"});
  train_on(2, islands({"mesh.island=2"}, each), folder.path() / "apart");
  EXPECT_LT(furthest(model_of(folder.path() / "ddp"), model_of(folder.path() / "apart")), 1e-6);
}

TEST(Islands, HaveOneModelAndTheirOwnMetrics) {
  const harness::ScratchFolder folder;
  train_on(2, islands(kStreaming), folder.path());
  EXPECT_EQ(furthest(model_of(folder.path()), model_of(folder.path() / "island-1")), 0);
  const auto first = base::read_metrics(folder.path() / "metrics.jsonl");
  const auto second = base::read_metrics(folder.path() / "island-1" / "metrics.jsonl");
  ASSERT_EQ(first.size(), 12);
  ASSERT_EQ(second.size(), 12);
  EXPECT_NE(first[3].number("loss"), second[3].number("loss"));              // each island has its own samples
  EXPECT_EQ(first[11].number("eval_loss"), second[11].number("eval_loss"));  // the global model is evaluated
  EXPECT_EQ(first[11].integer("tokens"), second[11].integer("tokens"));      // of all islands
  EXPECT_GT(first[4].number("islands"), 1);
}

TEST(Islands, MayHaveAnyLayoutInside) {
  const harness::ScratchFolder folder;
  for (const Sets& rule : {kDiloco, kStreaming, kNoloco, kCo2, kGossip}) {
    const std::string kind = rule[1];
    train_on(2, islands(rule), folder.path() / kind / "plain");
    const auto expected = model_of(folder.path() / kind / "plain");
    for (const auto& [name, ranks, sets] :
         std::vector<std::tuple<std::string, int, Sets>>{{"dp", 4, {}},
                                                         {"zero2", 4, {"memory.zero=2"}},
                                                         {"zero3", 6, {"memory.zero=3"}},
                                                         {"tp", 4, {"mesh.tp=2"}},
                                                         {"pp", 6, {"mesh.pp=3", "pipeline.routing=fixed"}},
                                                         {"pp_tp", 8, {"mesh.pp=2", "mesh.tp=2", "pipeline.routing=fixed"}},
                                                         {"cp_zero1", 4, {"mesh.cp=2", "memory.zero=1"}}}) {
      train_on(ranks, islands(rule, sets), folder.path() / kind / name);
      EXPECT_LT(furthest(model_of(folder.path() / kind / name), expected), 3e-5) << kind << " " << name;
    }
  }
}

// Every third round, and before the last merge. Ranks of an island hold copies and shards of the same model: one distance.
TEST(Islands, TrackWhetherTheyAreMergeable) {
  const harness::ScratchFolder folder;
  const Sets seldom{"sync.island.neighbours=0", "train.steps=11", "eval.every=0", "optim.learning_rate=0.01"};
  train_on(2, islands(kGossip, seldom), folder.path() / "without");
  std::vector<double> distances;
  for (const auto& [name, ranks, sets] :
       std::vector<std::tuple<std::string, int, Sets>>{{"plain", 2, {}}, {"dp", 4, {}}, {"zero3", 4, {"memory.zero=3"}}}) {
    Sets all = seldom;
    all.push_back("sync.island.track_merge_every=3");
    all.insert(all.end(), sets.begin(), sets.end());
    train_on(ranks, islands(kGossip, all), folder.path() / name);
    std::vector<int64_t> steps;
    const auto rows = base::read_metrics(folder.path() / name / "metrics.jsonl");
    const auto others = base::read_metrics(folder.path() / name / "island-1" / "metrics.jsonl");
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].has("merge_gap")) continue;
      steps.push_back(rows[i].integer("step"));
      EXPECT_NEAR(rows[i].number("merge_gap"), rows[i].number("merge_local_loss") - rows[i].number("merge_loss"), 1e-9);
      EXPECT_GT(rows[i].number("merge_distance"), 0);
      EXPECT_EQ(rows[i].number("merge_distance"), others[i].number("merge_distance"));
      EXPECT_EQ(rows[i].number("merge_loss"), others[i].number("merge_loss"));
      EXPECT_GT(rows[i].number("merge_seconds"), 0);
      distances.push_back(rows[i].number("merge_distance"));
    }
    EXPECT_EQ(steps, (std::vector<int64_t>{9, 11})) << name;
    EXPECT_NEAR(rows.back().number("merge_loss"), rows.back().number("eval_loss"), 1e-6);  // the run ends with that mean
  }
  for (size_t i = 2; i < distances.size(); ++i) EXPECT_NEAR(distances[i], distances[i % 2], 1e-3 * distances[i % 2]) << i;
  EXPECT_EQ(furthest(model_of(folder.path() / "plain"), model_of(folder.path() / "without")), 0);
  EXPECT_NE(base::read_file(folder.path() / "plain" / "report.html", 1 << 24).find("their mean, held out"), std::string::npos);
}

TEST(Islands, GoOnWhereTheyWereInterrupted) {
  const harness::ScratchFolder folder;
  Sets late = kStreaming;
  late.push_back("sync.island.delay=2");  // a fragment is under way at every snapshot
  late.push_back("sync.island.weights=tokens");
  // Values that these rules do not send stay in the islands' own weights.
  const Sets top{"mesh.island=2", "sync.island.wire=topk", "sync.island.kind=diloco", "sync.island.every=3"};
  const Sets random{"mesh.island=2", "sync.island.wire=randk", "sync.island.kind=co2", "sync.island.every=3"};
  for (const Sets& rule : {kDiloco, late, kNoloco, kCo2, kGossip, top, random}) {
    const std::filesystem::path straight = folder.path() / rule[1] / "straight", cut = folder.path() / rule[1] / "cut";
    train_on(2, islands(rule), straight);
    train_on(2, islands(rule), cut);
    // As if killed after its second snapshot, with one island that had not yet saved its own.
    for (const char* later : {"snapshots/step-00000012", "island-1/snapshots/step-00000012", "island-1/snapshots/step-00000008"})
      ASSERT_GT(std::filesystem::remove_all(cut / later), 0U);
    train_on(2, islands(rule), cut, /*resume=*/true);
    EXPECT_EQ(furthest(model_of(straight), model_of(cut)), 0) << rule[1];
    EXPECT_EQ(furthest(model_of(straight / "island-1"), model_of(cut / "island-1")), 0) << rule[1];
  }
}

TEST(Islands, BeginAnewOnlyWhereNoneHasASnapshot) {
  const harness::ScratchFolder folder;
  const auto steps_after_resume = [&](const char* name, const char* kept_by_the_first) {
    const std::filesystem::path run = folder.path() / name;
    train_on(2, islands(kDiloco), run);
    std::filesystem::remove_all(run / "island-1" / "snapshots");
    for (const char* step : {"step-00000004", "step-00000008", "step-00000012"})
      if (std::string(step) != kept_by_the_first) std::filesystem::remove_all(run / "snapshots" / step);
    std::filesystem::remove(run / "island-1" / "metrics.jsonl");
    train_on(2, islands(kDiloco), run, /*resume=*/true);
    return base::read_metrics(run / "island-1" / "metrics.jsonl").size();
  };
  EXPECT_EQ(steps_after_resume("none", ""), 12);
  EXPECT_EQ(steps_after_resume("one", "step-00000004"), 8);
}

TEST(Islands, MoveBetweenLayoutsWithTheirSnapshots) {
  const harness::ScratchFolder folder;
  Sets late = kStreaming;
  late.push_back("sync.island.delay=2");
  train_on(2, islands(late), folder.path() / "straight");
  train_on(2, islands(late), folder.path() / "moved");
  for (const char* of : {"snapshots/step-00000012", "island-1/snapshots/step-00000012"})
    std::filesystem::remove_all(folder.path() / "moved" / of);
  train_on(8, islands(late, {"mesh.pp=2", "memory.zero=2"}), folder.path() / "moved", /*resume=*/true);
  EXPECT_LT(furthest(model_of(folder.path() / "straight"), model_of(folder.path() / "moved")), 3e-5);
}

// Two islands of two ranks each; one of the second island's ranks is late at every sum of gradients.
void train_unlike(const Sets& more, const std::filesystem::path& out, bool resume, const base::Stop& stop) {
  Sets sets{"sync.island.pace=own", "sync.island.weights=tokens", "train.steps=36", "eval.every=0"};
  sets.insert(sets.end(), more.begin(), more.end());
  const base::Recipe recipe = islands(kDiloco, sets);
  const harness::Faults late = harness::Faults().slow({.rank = 3, .before_collective = 4, .pause = std::chrono::milliseconds(20)});
  const base::Stop never;  // the stop is asked for once they train
  const Start start{.out = out, .resume = resume, .cache = {}, .terminal = nullptr, .stop = &never};
  const harness::Run ended = harness::on_ranks(4, late, [&](comm::World& world) { run(world, recipe, start, {}, stop); });
  for (const auto& [rank, error] : ended.errors) ADD_FAILURE() << rank << ": " << error.what();
}

TEST(Islands, OfWhichOneIsSlowLeaveStepsOutAtItsOwnPace) {
  const harness::ScratchFolder folder;
  train_unlike({"snapshot.every=36"}, folder.path(), false, base::Stop());
  const auto fast = base::read_metrics(folder.path() / "metrics.jsonl");
  const auto slow = base::read_metrics(folder.path() / "island-1" / "metrics.jsonl");
  EXPECT_EQ(fast.size(), 36);
  EXPECT_LT(slow.size(), 24);
  EXPECT_EQ(slow.back().integer("step"), 36);
  EXPECT_LT(slow.back().number("pace"), 0.7);
  EXPECT_EQ(furthest(model_of(folder.path()), model_of(folder.path() / "island-1")), 0);
}

TEST(Islands, StopTogetherAlsoInAStepThatOneLeavesOut) {
  const harness::ScratchFolder folder;
  train_unlike({"snapshot.every=18"}, folder.path(), false, base::Stop());
  for (const char* of : {"snapshots", "island-1/snapshots"})
    ASSERT_GT(std::filesystem::remove_all(folder.path() / of / "step-00000036"), 0U);
  base::Stop asked;
  asked.request();
  train_unlike({"snapshot.every=18"}, folder.path(), true, asked);
  // The round that ends after step 20 decides it.
  for (const char* of : {"snapshots", "island-1/snapshots"})
    EXPECT_TRUE(std::filesystem::exists(folder.path() / of / "step-00000020")) << of;
  EXPECT_LT(base::read_metrics(folder.path() / "island-1" / "metrics.jsonl").back().integer("step"), 20) << "it took that step";
  EXPECT_EQ(furthest(model_of(folder.path()), model_of(folder.path() / "island-1")), 0);
}

TEST(Islands, RefuseModelsThatKeepRunningStatistics) {
  const harness::ScratchFolder folder;
  const auto classifier = [](const std::string& kind) {
    return small_decoder("classifier", {"data.kind=spirals", "model.batch_norm=true", "mesh.island=2", "train.steps=4",
                                        "train.global_batch=8", "sync.island.kind=" + kind});
  };
  try {
    train_on(2, classifier("gossip"), folder.path() / "apart");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_NE(std::string(error.what())
                  .find("sync.island.kind = gossip: this model keeps running statistics (batch norm), which differ from "
                        "island to island: use all_reduce, or a model without them"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(train_on(2, classifier("all_reduce"), folder.path() / "together"));
}

TEST(Islands, RefuseWhatCannotWork) {
  const auto refusal = [](const Sets& sets, int ranks) {
    try {
      check_recipe(islands(sets), ranks);
      return std::string("nothing");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal({"sync.island.kind=diloco"}, 2),
            "sync.island.kind = diloco: there is one island only: set mesh.island (or --islands), or leave the rule out");
  EXPECT_NE(refusal({"mesh.island=2", "sync.island.kind=diloco", "sync.island.delay=2"}, 2)
                .find("sync.island.delay: is for kind = streaming_diloco, and kind is diloco"),
            std::string::npos);
  EXPECT_NE(refusal({"mesh.island=2", "sync.island.kind=diloc"}, 2).find("did you mean \"diloco\""), std::string::npos)
      << refusal({"mesh.island=2", "sync.island.kind=diloc"}, 2);
  EXPECT_NE(refusal({"mesh.island=16", "sync.island.kind=diloco", "sync.island.every=4"}, 16).find("each needs at least one"),
            std::string::npos);
  EXPECT_NE(refusal({"mesh.island=2", "sync.island.kind=diloco", "train.on_bad_step=rollback"}, 2).find("use skip or stop"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn::train
