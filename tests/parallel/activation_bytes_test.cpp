// What blocks keep for their gradients, by their cards. (That a CPU keeps what a card says: decoder_pass_test.cpp. What a GPU kept beside
// these numbers: docs/measurements/user-gpu-2026-11-17.md.)
#include "parallel/activations/activation_bytes.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/decoder/decoder.h"
#include "model/decoder/fp8_linear.h"
#include "parallel/activations/recompute.h"
#include "parallel/layout/model_shard.h"

namespace cairn::parallel {
namespace {

constexpr double kTokens = 10, kEmbed = 64, kQ = 64, kKv = 32, kHeads = 4, kMlp = 160, kVocab = 400;
constexpr double kNorms = 2 * kEmbed, kAttention = kQ + 2 * kKv + kQ + kHeads, kInside = 2 * kMlp;  // elements a token

std::unique_ptr<model::Model> two_layers() {
  return model::make_decoder(
      {.vocab = 400, .embed = 64, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .mlp = 160, .length = 8, .tied = true});
}

model::Fp8LinearLayers is_fp8(const std::string& what, const std::string& layers) {
  return {*two_layers(), what, layers,
          [](const model::Parameter& parameter, int64_t dim) { return std::vector<int64_t>{parameter.shape[static_cast<size_t>(dim)]}; }};
}

// By what they hold: a lookup, then attention and MLP twice, then the head.
std::vector<double> all_of(const ActivationSetup& setup) {
  std::vector<double> bytes;
  for (const ActivationBytes& one : activation_bytes(*two_layers(), setup)) bytes.push_back(one.all);
  return bytes;
}

TEST(ActivationBytes, OnACpuNormsKeepTheirResult) {
  const double attention = 4 * kTokens * (kNorms + kAttention), mlp = 4 * kTokens * (kNorms + kInside);
  EXPECT_EQ(all_of({.tokens = 10}), (std::vector<double>{4 * kTokens, attention, mlp, attention, mlp, 4 * kTokens * (kNorms + kVocab)}));
}

TEST(ActivationBytes, AGpuRecomputesThemAndLogitsMayBeChunked) {
  const double attention = 2 * kTokens * (kEmbed + kAttention), mlp = 2 * kTokens * (kEmbed + kInside);
  EXPECT_EQ(all_of({.tokens = 10, .element_bytes = 2, .on_gpu = true, .loss_chunks = 4}),
            (std::vector<double>{2 * kTokens, attention, mlp, attention, mlp, 2 * kTokens * (3 * kEmbed + kVocab / 4)}))
      << "the head keeps its input, the result of its norm, and the gradient of that";
}

TEST(ActivationBytes, Fp8LinearLayersKeepCodesOfTheirInputs) {
  const model::Fp8LinearLayers second = is_fp8("all", "1");
  const std::vector<double> plain = all_of({.tokens = 10, .element_bytes = 2, .on_gpu = true});
  const std::vector<double> coded = all_of({.tokens = 10, .element_bytes = 2, .on_gpu = true, .fp8 = &second});
  ASSERT_EQ(coded.size(), plain.size());
  const std::vector<double> codes{0, 0, 0, kEmbed + kQ, kEmbed + kMlp, kEmbed + 2 * kVocab};
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(coded[i] - plain[i], kTokens * codes[i]) << "block " << i;
  EXPECT_EQ(all_of({.tokens = 10, .element_bytes = 2, .on_gpu = true, .fp8 = &second, .loss_chunks = 4}).back(),
            kTokens * (2 * (3 * kEmbed + kVocab / 4) + (kEmbed + 2 * kVocab) / 4) + 2 * kVocab * kEmbed)
      << "chunked logits: codes of one chunk at a time, and of the weight for all of them";
}

TEST(ActivationBytes, WithoutFp8NormsKeepTheirResult) {
  const model::Fp8LinearLayers first = is_fp8("layers", "0");
  const std::vector<double> plain = all_of({.tokens = 10, .element_bytes = 2}),
                            coded = all_of({.tokens = 10, .element_bytes = 2, .fp8 = &first});
  const std::vector<double> more{0, kEmbed + kQ - 2 * kEmbed, kEmbed + kMlp - 2 * kEmbed, 0, 0, 0};
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(coded[i] - plain[i], kTokens * more[i]) << "block " << i;
}

TEST(ActivationBytes, LayersInSlicesKeepWhatSlicesShare) {
  const double shared = 4 * kTokens * (kQ + 2 * kKv + 4 * kKv), attention = 4 * kTokens * (kNorms + kAttention) / 5 + shared,
               layer = attention + 4 * kTokens * (kNorms + kInside) / 5;
  EXPECT_EQ(all_of({.tokens = 10, .slices = 5}),
            (std::vector<double>{4 * kTokens, attention, layer, attention, layer, 4 * kTokens * (kNorms + kVocab)}))
      << "queries, keys, values, and two gradients of keys and values";
  const std::vector<ActivationBytes> bytes = activation_bytes(*two_layers(), {.tokens = 10, .slices = 5});
  EXPECT_EQ(bytes[1].input, 4 * kTokens * kEmbed);
  EXPECT_EQ(bytes[2].input, 0) << "one input for each layer";
}

TEST(ActivationBytes, OfARankAreItsFraction) {
  const std::vector<ActivationBytes> whole = activation_bytes(*two_layers(), {.tokens = 10}),
                                     half = activation_bytes(*two_layers(), {.tokens = 10, .share = 0.5});
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(half[i].all, whole[i].all / 2);
    EXPECT_EQ(half[i].input, whole[i].input / 2);
  }
}

TEST(ActivationBytes, BackwardGoesFromTheLastToTheFirst) {
  const std::vector<ActivationBytes> blocks{{.all = 100, .input = 10}, {.all = 300, .input = 20}, {.all = 50, .input = 5}};
  EXPECT_EQ(peak_activation_bytes(blocks, {}), 450);
  EXPECT_EQ(peak_activation_bytes(blocks, {true, true, false}), 10 + 300) << "the second at work, of the third nothing is left";
  EXPECT_EQ(peak_activation_bytes(blocks, {true, false, false}), 10 + 300 + 50);
  EXPECT_EQ(peak_activation_bytes(blocks, {true, true}), 10 + 300);
}

// Logits become their gradient in place: recomputed, they would exist twice.
TEST(Recompute, NeverRecomputesLogits) {
  const std::unique_ptr<model::Model> model = two_layers();
  const ActivationSetup setup{.tokens = 10};
  const std::vector<bool> all_but_the_head{true, true, true, true, true, false};
  EXPECT_EQ(recomputed_blocks({.mode = RecomputeMode::full}, *model, setup), all_but_the_head);
  EXPECT_EQ(recomputed_blocks({.mode = RecomputeMode::selective}, *model, setup), all_but_the_head);
  double inputs = 0;
  const std::vector<ActivationBytes> kept = activation_bytes(*model, setup);
  for (size_t i = 0; i + 1 < kept.size(); ++i) inputs += kept[i].input;
  const auto least = static_cast<int64_t>(inputs + kept.back().all);
  EXPECT_EQ(recomputed_blocks({.mode = RecomputeMode::budget, .budget_bytes = least}, *model, setup), all_but_the_head);
  EXPECT_THROW(recomputed_blocks({.mode = RecomputeMode::budget, .budget_bytes = least - 1}, *model, setup), Error);
}

// Each rank along pp has its own: what others keep does not count.
TEST(Recompute, BudgetsAreOfTheBlocksOfARank) {
  const std::unique_ptr<model::Model> model = two_layers();
  const ActivationSetup setup{.tokens = 10};
  Plan interleaved;
  interleaved.stage_blocks = {2, 1, 1, 2}, interleaved.rank_of_stage = {0, 1, 0, 1};
  const std::vector<int> ranks = rank_of_blocks(interleaved, model->blocks().size());
  EXPECT_EQ(ranks, (std::vector<int>{0, 0, 1, 0, 1, 1}));
  const std::vector<ActivationBytes> kept = activation_bytes(*model, setup);
  const double first = kept[0].all + kept[1].all + kept[3].all, second = kept[2].all + kept[4].all + kept[5].all;
  ASSERT_LT(first, second) << "the head keeps the most";
  const auto with = [&](double bytes, const std::vector<int>& of) {
    return recomputed_blocks({.mode = RecomputeMode::budget, .budget_bytes = static_cast<int64_t>(bytes)}, *model, setup, of);
  };
  EXPECT_EQ(with(second, ranks), std::vector<bool>(6, false));
  EXPECT_EQ(with(second - 1, ranks), (std::vector<bool>{false, false, true, false, false, false})) << "the second rank's first block";
  EXPECT_NE(with(second, {}), std::vector<bool>(6, false)) << "where one rank runs all";
}

}  // namespace
}  // namespace cairn::parallel
