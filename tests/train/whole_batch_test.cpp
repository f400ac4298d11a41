// Losses that need the whole batch, trained in every layout: the same losses, gradients and parameters as on one rank in one micro-batch.
#include "train/steps/whole_batch.h"

#include <atomic>
#include <chrono>
#include <poll.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/metrics.h"
#include "comm/local/local.h"
#include "data/retrieval_folder.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "refusal.h"
#include "small_decoder.h"
#include "train/layout_trace.h"
#include "train/steps/scores_ahead.h"
#include "train_on.h"
#include "tuning.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

const harness::ScratchFolder& files() {
  static const harness::ScratchFolder folder;
  return folder;
}

// A retrieval set and a teacher with the tokenizer of bytes.
const std::string& set_folder() {
  static const std::string folder = data::write_retrieval(files() / "set");
  return folder;
}
const std::string& teacher_folder() {
  static const std::string folder = make_base_model(files() / "teacher");
  return folder;
}

base::Recipe retrieval_recipe(const Sets& sets, const std::string& family = "llama") {
  return small_decoder(family, Sets{"data.kind=retrieval", "data.path=" + set_folder(), "retrieval.query_tokens=12",
                                    "retrieval.passage_tokens=20", "retrieval.teacher=" + teacher_folder(), "data.sampler=tas",
                                    "sampler.clusters=" + set_folder() + "/clusters.tsv", "eval.fraction=0.25", "train.global_batch=7",
                                    "optim.kind=sgd", "optim.momentum=0.9", "optim.learning_rate=0.05"} +
                                   sets);
}

struct BatchCase {
  std::string name;
  int ranks;
  Sets sets;
  std::string family = "llama";
};

LayoutTrace traced(const BatchCase& c) {
  LayoutTrace trace;
  for (const std::exception_ptr& error : comm::LocalNetwork(c.ranks).run([&](comm::World& world) {
         LayoutTrace own = trace_layout(world, retrieval_recipe(c.sets, c.family), {.steps = 2, .tensors = true, .plant = {}, .cache = {}});
         if (world.rank() == 0) trace = std::move(own);
       }))
    if (error) std::rethrow_exception(error);
  return trace;
}

class WholeBatch : public testing::TestWithParam<BatchCase> {};

TEST_P(WholeBatch, GivesTheGradientsOfOneRankInOneMicroBatch) {
  const BatchCase& c = GetParam();
  Sets same;  // keys that are part of the method
  for (const std::string& set : c.sets)
    if (set.starts_with("retrieval.") || set.starts_with("model.")) same.push_back(set);
  const LayoutTrace one = traced({"one", 1, same, c.family}), many = traced(c);
  EXPECT_GT(one.steps[0].loss, 0.1);
  const Difference found = first_difference(many, one, 1e-5);
  EXPECT_EQ(found.step, 0) << found.what << " by " << found.largest << " of " << found.scale;
}

const Sets kLabels{"retrieval.in_batch_loss=labels", "retrieval.teacher="};

INSTANTIATE_TEST_SUITE_P(
    Layouts, WholeBatch,
    testing::Values(BatchCase{"micro_batch_1", 1, {"train.micro_batch=1"}}, BatchCase{"micro_batch_3", 1, {"train.micro_batch=3"}},
                    BatchCase{"dp2", 2, {}}, BatchCase{"dp3_micro_batch_1", 3, {"train.micro_batch=1"}}, BatchCase{"dp5", 5, {}},
                    BatchCase{"more_ranks_than_samples", 8, {"memory.zero=3"}},
                    BatchCase{"zero1", 3, {"memory.zero=1", "train.micro_batch=2"}}, BatchCase{"zero2", 2, {"memory.zero=2"}},
                    BatchCase{"zero3", 4, {"memory.zero=3"}}, BatchCase{"zero3_micro_batch_1", 3, {"memory.zero=3", "train.micro_batch=1"}},
                    BatchCase{"hybrid_shard", 4, {"mesh.shard=2", "train.micro_batch=1"}}, BatchCase{"tp2", 2, {"mesh.tp=2"}},
                    BatchCase{"tp2_dp2_micro_batch_2", 4, {"mesh.tp=2", "train.micro_batch=2"}},
                    BatchCase{"tp2_ladder", 2, {"mesh.tp=2", "model.residual=ladder"}}, BatchCase{"ep2_dp2", 4, {"mesh.ep=2"}},
                    BatchCase{"recompute", 2, {"recompute.mode=full", "train.micro_batch=2"}},
                    BatchCase{"kl_list_dp3", 3, {"retrieval.in_batch_loss=kl_list", "retrieval.pooling=mean"}},
                    BatchCase{"labels_dp2", 2, kLabels + Sets{"train.micro_batch=2"}},
                    BatchCase{"gpt2_dp2", 2, {"retrieval.pooling=mean"}, "gpt2"}, BatchCase{"gla_dp2", 2, {"train.micro_batch=2"}, "gla"}),
    [](const auto& c) { return c.param.name; });

TEST(WholeBatchLoss, DiffersFromTheMeanOverParts) {  // or the tests above show nothing
  const LayoutTrace one = traced({"one", 1, {}});
  Sets halves{"train.global_batch=3"};
  EXPECT_GT(std::abs(traced({"three", 1, halves}).steps[0].loss / one.steps[0].loss - 1), 1e-3);
}

TEST(RetrievalRuns, GiveTheSameLossesWithAnyTeacherAheadAndAfterResuming) {
  const harness::ScratchFolder scratch;
  const auto losses = [&](const std::string& name, const Sets& sets, int ranks = 1) {
    return losses_on(ranks, retrieval_recipe(Sets{"train.steps=6", "snapshot.every=3", "snapshot.keep=9"} + sets), scratch / name);
  };
  const std::vector<double> one = losses("one", {"retrieval.teacher_ahead=1"});
  ASSERT_EQ(one.size(), 6u);
  EXPECT_EQ(losses("far", {"retrieval.teacher_ahead=5"}), one);
  std::filesystem::copy(scratch / "one", scratch / "resumed", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(scratch / "resumed" / "snapshots" / "step-00000006");
  EXPECT_EQ(losses_on(1, retrieval_recipe({"train.steps=6", "snapshot.every=3"}), scratch / "resumed", /*resume=*/true), one);
  const auto rows = base::read_metrics(scratch / "one" / "metrics.jsonl");
  EXPECT_TRUE(rows.front().has("pair_loss"));
  EXPECT_TRUE(rows.front().has("teacher_wait_seconds"));
  EXPECT_GT(rows.back().number("eval_loss"), 0);
}

TEST(RetrievalRuns, DrawTheSameSamplesOnAllLayouts) {
  const harness::ScratchFolder scratch;
  const auto samples = [&](int ranks, const Sets& sets) {
    const auto out = scratch / fmt::format("run{}", ranks);
    train_on(ranks, retrieval_recipe(Sets{"train.steps=4"} + sets), out);
    std::vector<std::string> all;
    for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl"))
      for (const auto& [name, value] : row.values)
        if (name == "samples") all.push_back(std::get<std::string>(value));
    return all;
  };
  const auto one = samples(1, {});
  EXPECT_EQ(one.size(), 4u);
  EXPECT_EQ(samples(2, {}), one);
  EXPECT_EQ(samples(4, {"memory.zero=3"}), one);
}

TEST(RetrievalRuns, TrainAdaptersInBf16AndClusterQueriesByThemselves) {
  const harness::ScratchFolder scratch;
  const auto run_losses =
      losses_on(2,
                retrieval_recipe({"model.from=" + teacher_folder(), "model.lora.rank=2", R"(model.lora.targets=["q_proj", "up_proj"])",
                                  "train.precision=bf16", "train.steps=5", "sampler.clusters=", "sampler.groups=3", "model.layers=2",
                                  "model.embed=16", "model.heads=2", "model.kv_heads=1", "model.mlp=24", "optim.learning_rate=0.01"}),
                scratch / "run");
  EXPECT_EQ(run_losses.size(), 5u);
  for (const double loss : run_losses) EXPECT_TRUE(std::isfinite(loss));
  std::ifstream clusters(scratch / "run" / "clusters.tsv");
  int lines = 0, queries = 0;
  for (std::string line; std::getline(clusters, line); ++lines) queries += 1 + static_cast<int>(std::ranges::count(line, '\t'));
  EXPECT_EQ(lines, 3);
  EXPECT_EQ(queries, 18);  // of 24, a quarter is held out
}

TEST(RetrievalRuns, AreRefusedWhereALossOverTheWholeBatchIsImpossible) {
  const auto refused = [](const Sets& sets, const parallel::Plan* = nullptr) { return refusal_of(retrieval_recipe(sets)); };
  const auto refused_on = [](int ranks, const Sets& sets) {
    const base::Stop never;
    const harness::Run ended =
        harness::on_ranks(ranks, {.expect_errors = true}, [&](comm::World& world) { run(world, retrieval_recipe(sets), {}, {}, never); });
    EXPECT_EQ(ended.error_on(0).exit_code(), 2);
    return std::string(ended.error_on(0).what());
  };
  EXPECT_THAT(refused_on(2, {"mesh.pp=2"}), HasSubstr("mesh.pp = 2: does not work with data.kind = retrieval: its loss compares all"));
  EXPECT_THAT(refused_on(2, {"mesh.cp=2"}), HasSubstr("mesh.cp = 2: does not work with data.kind = retrieval"));
  EXPECT_THAT(refused({"train.cuda_graph=true"}), HasSubstr("train.cuda_graph = true"));
  EXPECT_THAT(refused({"model.dropout=0.1"}), HasSubstr("model.dropout = 0.1: does not work"));
  EXPECT_THAT(refused({"retrieval.teacher="}), HasSubstr("retrieval.in_batch_weight = 0.75: no teacher"));
  EXPECT_THAT(refused({"retrieval.in_batch_weight=0"}), HasSubstr("nothing asks it"));
  EXPECT_THAT(refused(Sets{"retrieval.in_batch_weight=0", "retrieval.pair_weight=0", "retrieval.teacher="}),
              HasSubstr("nothing would be learned"));
  EXPECT_THAT(refused({"sampler.clusters="}), HasSubstr("no clusters of queries"));
  EXPECT_THAT(refused({"data.tokenizer=bpe", "data.vocab=300"}), HasSubstr("its tokenizer is another one"));
  EXPECT_THAT(refused({"data.kind=text", "data.path=", "retrieval.teacher="}), HasSubstr("data.sampler = tas"));
}

TEST(ScoresAhead, MakesBatchesInOrderAndStartsAnewAfterAJump) {
  std::atomic<int64_t> made = 0, most = 0;
  ScoresAhead scores(
      [&](int64_t batch) {
        ++made, most = std::max<int64_t>(most, batch);
        return at::full({1}, static_cast<double>(batch));
      },
      /*ahead=*/2, /*end=*/100, std::chrono::seconds(20));
  for (const int64_t batch : {5, 6, 7, 20, 21, 3, 4, 4}) EXPECT_EQ(scores.take(batch).item<int64_t>(), batch) << batch;
  EXPECT_LE(most.load(), 24);
}

TEST(ScoresAhead, PassesErrorsOnAndGivesUpAfterItsTimeout) {
  ScoresAhead broken([](int64_t) -> at::Tensor { throw Error(Error::Kind::bad_input, "no scores today"); }, 1, 9, std::chrono::seconds(20));
  EXPECT_THROW(
      {
        try {
          broken.take(0);
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("no scores today"));
          throw;
        }
      },
      Error);
  ScoresAhead slow(
      [](int64_t) {
        ::poll(nullptr, 0, 400);
        return at::zeros({1});
      },
      1, 9, std::chrono::milliseconds(50));
  const auto begun = std::chrono::steady_clock::now();
  try {
    slow.take(3);
    ADD_FAILURE() << "no timeout";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("retrieval.teacher_timeout_s = 0.05: the teacher has not scored batch 3"));
    EXPECT_EQ(error.exit_code(), 2);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(350));
}

}  // namespace
}  // namespace cairn::train
