// train.method = "one_byte" through the trainer: results, messages, state and refusals.
#include <filesystem>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "small_decoder.h"
#include "snapshot/snapshot.h"
#include "sync/one_byte/message.h"
#include "train/settings.h"
#include "train/train.h"

namespace cairn::train {
namespace {

using Sets = std::vector<std::string>;

base::Recipe slopes(const Sets& more = {}) {
  Sets sets{"train.method=one_byte",      "train.one_byte.samples_per_round=3",
            "optim.learning_rate=1e-4",   "optim.warmup_steps=0",
            "optim.schedule=constant",    "train.steps=8",
            "train.global_batch=4",       "snapshot.every=4",
            "train.one_byte.hash_every=2"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

comm::Ledger slopes_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out, bool resume = false) {
  comm::LocalNetwork network(ranks);
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         run(world, recipe, {.out = out, .resume = resume, .cache = {}, .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
  return network.ledger();
}

std::map<std::string, at::Tensor> weights_after(const std::filesystem::path& out) {
  std::map<std::string, at::Tensor> all;
  const snapshot::OpenSnapshot opened = snapshot::open(*snapshot::find_latest(out.string()));
  const snapshot::Safetensors& tensors = opened.section("model");
  for (const snapshot::TensorEntry& entry : tensors.entries()) all[entry.name] = tensors.view(entry).clone();
  return all;
}

bool same_bits(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& one) { return at::equal(one.second, b.at(one.first)); });
}

TEST(OneByteStep, SendsOneMessageToEachOtherRankInAStep) {
  const harness::ScratchFolder folder;
  const comm::Ledger ledger = slopes_on(2, slopes(), folder / "run");
  EXPECT_EQ(ledger.bytes_sent(0, comm::Purpose::gradient), 8 * (26 + 3));
}

TEST(OneByteStep, ResumesBitwiseIdenticalWithTheSameLog) {
  const harness::ScratchFolder folder;
  slopes_on(2, slopes(), folder / "whole");
  slopes_on(2, slopes({"train.steps=4"}), folder / "parts");
  const auto half = weights_after(folder / "parts");
  slopes_on(2, slopes(), folder / "parts", /*resume=*/true);
  EXPECT_TRUE(same_bits(weights_after(folder / "whole"), weights_after(folder / "parts")));
  EXPECT_FALSE(same_bits(half, weights_after(folder / "parts")));  // or the test shows nothing
  const std::string log = folder.text_of("parts/rounds.bin");
  EXPECT_EQ(sync::decode_log(base::as_bytes(log), sync::SlopeCode::log8).size(), 8u);
}

// Both ranks have two samples a step, so the mean of their means is the loss of the step.
TEST(OneByteStep, TellsTheMeanLossOfEachRank) {
  const harness::ScratchFolder folder;
  slopes_on(2, slopes({"train.steps=3"}), folder / "run");
  const std::string log = folder.text_of("run/rounds.bin");
  const auto rounds = sync::decode_log(base::as_bytes(log), sync::SlopeCode::log8);
  const std::vector<base::MetricsRow> rows = base::read_metrics(folder / "run" / "metrics.jsonl");
  ASSERT_EQ(rounds.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(rounds[i].messages.size(), 2u);
    const double mean = (rounds[i].messages[0].mean_loss + rounds[i].messages[1].mean_loss) / 2.0;
    EXPECT_NEAR(mean, rows[i].number("loss"), 0.01 * mean) << "step " << i + 1;  // messages have bf16
  }
}

TEST(OneByteStep, MovesWhatIsTrainedAndNothingElse) {
  const harness::ScratchFolder folder;
  slopes_on(1, slopes({"optim.learning_rate=1e-30"}), folder / "start");
  slopes_on(1, slopes({"model.train=[\"role:norm\"]"}), folder / "norms");
  const auto start = weights_after(folder / "start"), after = weights_after(folder / "norms");
  for (const auto& [name, tensor] : after) EXPECT_EQ(at::equal(tensor, start.at(name)), name.find("norm") == std::string::npos) << name;
}

TEST(OneByteStep, RefusesWhatItCannotDo) {
  const auto message = [](const Sets& sets, int ranks) -> std::string {
    try {
      check_recipe(slopes(sets), ranks);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({}, 2), "");
  EXPECT_NE(message({"mesh.tp=2"}, 2).find("each rank perturbs whole parameters: use mesh.dp"), std::string::npos);
  EXPECT_NE(message({"model.dropout=0.1"}, 1).find("model.dropout = 0.1"), std::string::npos);
  EXPECT_NE(message({"train.precision=bf16"}, 1).find("use fp32"), std::string::npos);
  EXPECT_NE(message({"memory.zero=1"}, 2).find("memory.zero = 1"), std::string::npos);
  EXPECT_NE(message({"train.step=one_byte"}, 1).find("did you mean `train.method`, which takes \"one_byte\"?"), std::string::npos);
  EXPECT_EQ(message({"island.number=0", "island.count=2", "island.meet=127.0.0.1:1", "sync.island.kind=diloco", "sync.island.every=3"}, 1),
            "island.count = 2: does not work with train.method = one_byte: ranks exchange slopes at every step: use mesh.dp in one world");
  EXPECT_NE(message({"train.global_batch=1"}, 2).find("each of 2 ranks needs a sample"), std::string::npos);
}

}  // namespace
}  // namespace cairn::train
