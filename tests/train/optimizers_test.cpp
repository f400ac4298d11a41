// Every update rule and schedule through the whole loop: the same losses on any number of ranks, and exact continuation.
#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "optim/optimizer.h"
#include "train/parameter_piece.h"
#include "train/refusal.h"
#include "train/train.h"

namespace cairn::train {
namespace {

base::Recipe rule_recipe(const std::string& kind, const std::string& schedule = "wsd") {
  return base::Recipe::parse(fmt::format(R"(
    model = {{layers = 1, embed = 16, heads = 2, kv_heads = 1, mlp = 24, tied = false}}
    data = {{vocab = 260, length = 12, stories_bytes = 20000}}
    train = {{global_batch = 5, steps = 8}}
    optim = {{kind = "{}", learning_rate = {}, warmup_steps = 2, schedule = "{}"}}
    snapshot = {{every = 4}}
    log = {{tensorboard = false, trace = false, samples = 0}}
    eval = {{every = 0, samples = 2}}
  )",
                                         kind, kind == "sgd" ? 0.3 : 0.01, schedule),
                             "rules.toml");
}

// An update rule that depends on inputs and outputs must know which is which: GPT-2 stores its projections [in, out].
TEST(ParameterPieces, SayInWhichOrderTheModelStoresAMatrix) {
  for (const char* family : {"llama", "gpt2"}) {
    model::DecoderShape shape{.vocab = 29, .embed = 16, .layers = 1, .heads = 4, .kv_heads = 4, .head_dim = 4, .mlp = 24, .length = 9};
    shape.family = family;
    const std::unique_ptr<model::Model> model = model::make_decoder(shape, {});
    int wide = 0;  // layers with more outputs than inputs
    for (const model::Parameter& one : model->parameters()) {
      const optim::ParameterPiece piece = make_piece(one, at::empty(one.shape), at::empty(one.shape));
      if (!piece.hidden) continue;
      EXPECT_EQ(piece.fan_in_fan_out, family == std::string("gpt2")) << one.name;
      wide += one.shape[piece.fan_in_fan_out ? 1 : 0] > one.shape[piece.fan_in_fan_out ? 0 : 1];
    }
    EXPECT_EQ(wide, 2) << family;  // gate and up; or queries, keys and values as one, and up
  }
}

std::vector<double> column(const std::filesystem::path& run, const std::string& name) {
  std::vector<double> result;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl")) result.push_back(row.number(name));
  return result;
}

std::vector<double> rule_losses(int ranks, const std::filesystem::path& out, const std::string& kind, bool resume = false) {
  const base::Stop never;
  harness::on_ranks(ranks, [&](comm::World& world) {
    Start start;
    start.out = out;
    start.resume = resume;
    run(world, rule_recipe(kind), start, {}, never);
  });
  return column(out, "loss");
}

TEST(Optimizers, GiveTheSameLossesOnAnyNumberOfRanksAndLearn) {
  const harness::ScratchFolder scratch;
  for (const std::string& kind : optim::optimizer_names()) {
    const std::vector<double> one = rule_losses(1, scratch / (kind + "1"), kind), three = rule_losses(3, scratch / (kind + "3"), kind);
    ASSERT_EQ(one.size(), 8u);
    EXPECT_LT(one[7], one[0] - 0.1) << kind;
    // Muon's iteration raises the rounding of sums up to 3.4^5 times.
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(three[i], one[i], kind == "muon" ? 2e-4 : 2e-5) << kind << ", step " << i + 1;
  }
}

TEST(Optimizers, ContinueBitForBitFromASnapshot) {
  const harness::ScratchFolder scratch;
  for (const std::string& kind : optim::optimizer_names()) {
    const std::vector<double> whole = rule_losses(2, scratch / kind, kind);
    std::filesystem::remove_all(scratch / kind / "snapshots" / "step-00000008");
    EXPECT_EQ(rule_losses(2, scratch / kind, kind, /*resume=*/true), whole) << kind;
  }
}

TEST(Optimizers, FollowTheScheduleOfTheRecipe) {
  const harness::ScratchFolder scratch;
  rule_losses(1, scratch / "run", "adamw");
  const std::vector<double> rates = column(scratch / "run", "lr");
  // 8 steps: 2 of warm-up, high until 0.8 of the run (step 6.4), then 1 - sqrt down to 0.02 of the highest.
  const double at_seven = 0.01 * (0.02 + 0.98 * (1 - std::sqrt((7.0 / 8 - 0.8) / 0.2)));
  const double expected[] = {0.005, 0.01, 0.01, 0.01, 0.01, 0.01, at_seven, 0.0002};
  ASSERT_EQ(rates.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(rates[i], expected[i], 1e-12) << "step " << i + 1;
}

TEST(Optimizers, UnknownNamesAreRefusedAndTheNearestNamed) {
  EXPECT_THAT(refusal_of(rule_recipe("adamw", "cosin")), testing::HasSubstr("did you mean \"cosine\"?"));
  EXPECT_THAT(refusal_of(rule_recipe("adafctor")), testing::HasSubstr("did you mean \"adafactor\"?"));
}

}  // namespace
}  // namespace cairn::train
