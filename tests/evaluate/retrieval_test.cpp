#include "evaluate/retrieval.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"

namespace cairn::evaluate {
namespace {

TEST(RetrievalFigures, EqualThoseCountedByHand) {
  std::vector<data::Match> results;
  for (int64_t i = 0; i < 200; ++i) results.push_back({.id = 100 + i, .score = static_cast<float>(-i)});
  // Ranks 3 (grade 1) and 120 (grade 3); one passage is not found.
  const std::vector<data::Judgement> judged{{102, 1}, {219, 3}, {7, 1}};
  const RetrievalFigures found = score_results(results, judged);
  EXPECT_DOUBLE_EQ(found.mrr_10, 1.0 / 3);
  EXPECT_DOUBLE_EQ(found.recall_10, 1.0 / 3);
  EXPECT_DOUBLE_EQ(found.recall_100, 1.0 / 3);
  EXPECT_DOUBLE_EQ(found.recall_1000, 2.0 / 3);
  EXPECT_NEAR(found.ndcg_10, 0.5 / (7 + 1 / std::log2(3) + 0.5), 1e-12);
  EXPECT_EQ(score_results(std::span(results).first(2), judged).mrr_10, 0);
}

model::DecoderShape small_shape() {
  return {.vocab = 30, .embed = 16, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 8, .mlp = 24, .length = 24};
}

struct SmallEncoder {
  std::unique_ptr<model::Model> model = model::make_encoder(small_shape());
  at::Tensor flat = at::empty({model->elements()});
  std::unique_ptr<model::FlatWeights> weights = std::make_unique<model::FlatWeights>(model->layout(), flat);
  model::Buffers buffers = model->make_buffers(at::kFloat);
  SmallEncoder() { model::initialize_parameters(*model, flat, base::Random(2)); }
  TextEncoder texts() { return {*model, *weights, buffers, 0}; }
};

class Words final : public data::Tokenizer {
 public:
  using data::Tokenizer::encode;
  void encode(std::string_view text, const data::EncodeOptions&, std::vector<int32_t>& into) const override {
    for (const char one : text) into.push_back(one - 'a');
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  std::string piece(int32_t) const override { return {}; }
  int64_t vocab_size() const override { return 26; }
  std::optional<int32_t> id_of(std::string_view) const override { return std::nullopt; }
  bool is_special(int32_t) const override { return false; }
  bool is_split_point(char, char) const override { return true; }
  std::string json() const override { return {}; }
};

data::TokenTable tokens_of(std::vector<std::string> texts, int threads = 1) {
  data::TextTable table;
  for (std::string& text : texts) table.ids.push_back(text), table.texts.push_back(text);
  return data::tokenize_texts(table, Words(), 20, false, threads);
}

// Padding changes nothing: each text alone has the same vector, by every pooling.
TEST(TextVectors, AreThoseOfEachTextAlone) {
  SmallEncoder encoder;
  const data::TokenTable tokens = tokens_of({"hello", "a", "whatever", "so", "longertext"}, 2);
  const std::vector<int64_t> all{4, 0, 1, 2, 3};
  for (const auto pooling : {data::RetrievalPooling::last, data::RetrievalPooling::mean, data::RetrievalPooling::first}) {
    const at::Tensor together = text_vectors(encoder.texts(), tokens, all, pooling, 3);
    for (size_t i = 0; i < all.size(); ++i) {
      const at::Tensor states = token_vectors(encoder.texts(), tokens, std::span(all).subspan(i, 1)).vectors[0];
      const at::Tensor expected = pooling == data::RetrievalPooling::last    ? states[states.size(0) - 1]
                                  : pooling == data::RetrievalPooling::first ? states[0]
                                                                             : states.mean(0);
      EXPECT_LT((together[static_cast<int64_t>(i)] - expected).abs().max().item<float>(), 2e-6f) << i;
    }
  }
}

// A query that is a passage finds it first, if vectors have one length: a text is most similar to itself.
TEST(EvaluateRetrieval, FindsEachTextByItself) {
  SmallEncoder encoder;
  const data::TokenTable tokens = tokens_of({"hello", "aaaa", "whatever", "soft", "zzz", "longertext"});
  std::vector<std::vector<data::Judgement>> judged(6);
  for (int64_t i = 0; i < 6; ++i)
    if (i != 3) judged[static_cast<size_t>(i)] = {{i, 1}};
  std::vector<int64_t> asked;
  const RetrievalResult found =
      evaluate_retrieval(encoder.texts(), tokens, tokens, judged, {.pooling = data::RetrievalPooling::last, .results = 6, .timed = 2},
                         [&](int64_t query, std::span<const data::Match> results) {
                           asked.push_back(query);
                           EXPECT_EQ(results.size(), 6u);
                           EXPECT_EQ(results.front().id, query);
                         });
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 1, 2, 4, 5}));
  EXPECT_EQ(found.figures.queries, 5);
  EXPECT_EQ(found.figures.mrr_10, 1);
  EXPECT_EQ(found.figures.ndcg_10, 1);
  EXPECT_EQ(found.figures.recall_10, 1);
  EXPECT_GT(found.query_s, 0);
}

}  // namespace
}  // namespace cairn::evaluate
