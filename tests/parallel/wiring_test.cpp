// Residual wirings: what they compute, said by their recurrences over the blocks of the standard model.
#include "model/decoder/wiring.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/config.h"
#include "model/model.h"
#include "parallel/token_batch.h"

namespace cairn::model {
namespace {

constexpr int64_t kLayers = 3;

DecoderShape wired(const std::string& residual, std::vector<int64_t> ladder = {}) {
  return {.vocab = 19,
          .embed = 12,
          .layers = kLayers,
          .heads = 3,
          .kv_heads = 1,
          .head_dim = 4,
          .mlp = 14,
          .length = 9,
          .residual = residual,
          .ladder_layers = std::move(ladder)};
}

// The standard model, block by block, on whatever a test hands each.
class Standard {
 public:
  Standard() : model_(make_decoder(wired("standard"))), layout_(model_->layout()), buffers_(model_->make_buffers(at::kDouble)) {
    flat_ = at::empty({layout_.elements}, at::kDouble);
    initialize_parameters(*model_, flat_, base::Random(3));
    flat_.mul_(10);
  }

  const at::Tensor& flat() const { return flat_; }
  mesh::Batch batch() const { return parallel::token_batch(2, 9, 19); }

  // What block `i` makes of `x`, which it reads; the first reads tokens.
  at::Tensor run(size_t i, const at::Tensor& x) const {
    at::NoGradGuard no_grad;
    const FlatWeights weights(layout_, flat_);
    Buffers buffers = buffers_;
    const mesh::Axes alone;
    const Call call{.weights = weights, .buffers = buffers, .axes = alone};
    const Block& block = *model_->blocks()[i];
    Values values;
    values.put(block.card().reads.front(), x);
    block.plain(values, call);
    return values.get(block.card().writes.front());
  }
  // h_i alone: what it adds.
  at::Tensor added(size_t i, const at::Tensor& x) const { return run(i, x) - x; }
  at::Tensor embedded() const { return run(0, batch().field("tokens")); }
  at::Tensor logits(const at::Tensor& x) const { return run(model_->blocks().size() - 1, x); }

 private:
  std::unique_ptr<Model> model_;
  mesh::FlatLayout layout_;
  at::Tensor flat_;
  Buffers buffers_;
};

at::Tensor logits_of_wired(const DecoderShape& shape, const Standard& standard) {
  at::NoGradGuard no_grad;
  const std::unique_ptr<Model> model = make_decoder(shape);
  const FlatWeights weights(model->layout(), standard.flat());  // the same parameters in the same order
  Buffers buffers = model->make_buffers(at::kDouble);
  const mesh::Axes alone;
  const Call call{.weights = weights, .buffers = buffers, .axes = alone};
  Values values;
  values.put("tokens", standard.batch().field("tokens"));
  for (const auto& block : model->blocks()) block->forward(values, nullptr, call);
  return values.get("logits");
}

double furthest(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(Wiring, LadderReadsTheStreamWithoutTheBranchBefore) {
  const Standard standard;
  // x_i = x_{i-1} + h_i(x_{i-2}), and x_{-1} = x_0.
  std::vector<at::Tensor> x{standard.embedded()};
  for (size_t i = 1; i <= 2 * kLayers; ++i) x.push_back(x[i - 1] + standard.added(i, x[i >= 2 ? i - 2 : 0]));
  const at::Tensor ladder = logits_of_wired(wired("ladder", {0, 1, 2}), standard);
  EXPECT_LT(furthest(ladder, standard.logits(x.back())), 1e-9);
  EXPECT_GT(furthest(ladder, logits_of_wired(wired("standard"), standard)), 1e-3);
}

TEST(Wiring, SomeLayersOfALadderAreInTheFormOfTwoTensors) {
  const Standard standard;
  at::Tensor after_attention = standard.embedded(), after_mlp = after_attention;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const bool ladder = layer >= 1;
    const at::Tensor attention_in = ladder ? after_attention : after_mlp, before = after_mlp;
    after_attention = before + standard.added(2 * layer + 1, attention_in);
    after_mlp = after_attention + standard.added(2 * layer + 2, ladder ? before : after_attention);
  }
  EXPECT_LT(furthest(logits_of_wired(wired("ladder", {1, 2}), standard), standard.logits(after_mlp)), 1e-9);
}

TEST(Wiring, ALadderOfNoLayersIsTheStandardModel) {
  const Standard standard;
  EXPECT_LT(furthest(logits_of_wired(wired("ladder"), standard), logits_of_wired(wired("standard"), standard)), 1e-9);
}

TEST(Wiring, ParallelHalvesReadTheSame) {
  const Standard standard;
  at::Tensor x = standard.embedded();
  for (size_t layer = 0; layer < kLayers; ++layer) x = x + standard.added(2 * layer + 1, x) + standard.added(2 * layer + 2, x);
  EXPECT_LT(furthest(logits_of_wired(wired("parallel"), standard), standard.logits(x)), 1e-9);
}

TEST(Wiring, LayersAreNamedInWords) {
  EXPECT_EQ(parse_layers("all", 3), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(parse_layers("last 2", 3), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(parse_layers("last 0", 3), (std::vector<int64_t>{}));
  EXPECT_EQ(parse_layers("2,0", 3), (std::vector<int64_t>{0, 2}));
  for (const char* words : {"all", "last 2", "last 0", "0,2", "0"}) EXPECT_EQ(format_layers(parse_layers(words, 3), 3), words);
  const auto refused = [](const std::string& text) -> std::string {
    try {
      parse_layers(text, 3);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused("last 4").find("the model has 3 layers"), std::string::npos);
  EXPECT_NE(refused("1,3").find("there is no layer 3, the last is 2"), std::string::npos);
  for (const char* words : {"", "some", "1,,2", "-1", "last"})
    EXPECT_NE(refused(words).find("write \"all\", \"last 4\""), std::string::npos) << words;
}

TEST(Wiring, IsPartOfTheConfigAndNoProgramTakesItForTheStandardOne) {
  for (const DecoderShape& shape : {wired("standard"), wired("ladder", {1, 2}), wired("ladder"), wired("parallel")}) {
    const std::string text = format_config(shape);
    const DecoderShape back = parse_config(text, "config.json");
    EXPECT_EQ(back.residual, shape.residual);
    EXPECT_EQ(back.ladder_layers, shape.ladder_layers);
    EXPECT_EQ(text.find("\"model_type\": \"llama\"") != std::string::npos, shape.residual == "standard") << text;
  }
  std::string bad = format_config(wired("ladder", {1, 2}));
  bad.replace(bad.find("2\n"), 1, "9");
  EXPECT_THROW(parse_config(bad, "config.json"), Error);
}

}  // namespace
}  // namespace cairn::model
