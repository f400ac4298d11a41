#include "evaluate/embed.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "evaluate/document_scores.h"
#include "evaluate/refused.h"
#include "evaluate/small_model.h"
#include "harness/scratch_folder.h"

namespace cairn::evaluate {
namespace {

using testing::HasSubstr;

// An encoder with the weights of a small model.
struct SmallEncoder {
  SmallModel small;
  std::unique_ptr<model::Model> model = model::make_encoder(small.shape);
  model::FlatWeights weights{model->layout(), small.weights.flat().narrow(0, 0, model->elements())};
  model::Buffers buffers = model->make_buffers(at::kFloat);

  at::Tensor run(const mesh::Batch& batch) {
    const at::NoGradGuard no_grad;
    const mesh::Axes alone;
    const model::Call call{.weights = weights, .buffers = buffers, .axes = alone, .random = {}, .needs = {false, false}};
    model::Values values;
    for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
    for (const auto& block : model->blocks()) block->forward(values, nullptr, call);
    return values.take("vectors");
  }
  Encode encode() {
    return [this](const mesh::Batch& batch) { return run(batch); };
  }
  // Hidden states of all tokens of one text, [tokens, embed].
  at::Tensor states(const std::vector<int64_t>& tokens) {
    mesh::Batch batch;
    batch.fields["tokens"] = {at::tensor(tokens, at::kLong).view({1, -1})};
    return run(batch)[0];
  }
};

class Embed : public testing::Test {
 protected:
  data::Pool pool(const std::string& lines, const std::string& chat_template = "plain") {
    data::DataOptions data;
    data.path = scratch.file("pool.jsonl", lines);
    data.tokenizer = data::TokenizerKind::bytes;
    data.chat_template = chat_template;
    return data::open_pool(data, {}, log);
  }
  static std::string texts() {
    std::string lines;
    for (int i = 0; i < 23; ++i)
      lines += "{\"text\": \"" + std::string(static_cast<size_t>(1 + i * 7 % 19), static_cast<char>('a' + i)) + "\"}\n";
    return lines;
  }
  harness::ScratchFolder scratch;
  base::Log log = base::Log({.level = base::Level::error, .terminal = nullptr, .file = {}});
  SmallEncoder encoder;
};

TEST_F(Embed, PoolsStatesWithWeightsByPosition) {
  const data::Pool documents = pool(texts());
  for (const Pooling pooling : {Pooling::weighted_mean, Pooling::mean, Pooling::last}) {
    const at::Tensor found = embed_documents(documents, 0, 23, {.pooling = pooling}, at::kCPU, encoder.encode());
    for (int64_t document : {0, 5, 22}) {
      const at::Tensor states = encoder.states(embedded_tokens(documents, document, {})).to(at::kDouble);
      const int64_t count = states.size(0);
      at::Tensor expected = states[count - 1];
      if (pooling == Pooling::mean) expected = states.mean(0);
      if (pooling == Pooling::weighted_mean) {
        const at::Tensor weights = at::arange(1, count + 1, at::kDouble).unsqueeze(1);
        expected = (weights * states).sum(0) / weights.sum();
      }
      EXPECT_TRUE(at::allclose(found[document].to(at::kDouble), expected / expected.norm(), 0, 1e-5)) << static_cast<int>(pooling);
    }
  }
}

TEST_F(Embed, WeightsOfConstantStatesGiveTheConstant) {
  const data::Pool documents = pool(texts());
  const at::Tensor constant = at::randn({16});
  const auto constant_states = [&](const mesh::Batch& batch) {
    const at::Tensor& weights = batch.field("pool");
    return at::matmul(weights, constant.expand({weights.size(0), weights.size(2), 16}));
  };
  const at::Tensor raw = constant_states([&] {
    mesh::Batch batch;
    at::Tensor seen;
    embed_documents(documents, 3, 1, {}, at::kCPU, [&](const mesh::Batch& given) {
      batch = given;
      return constant_states(given);
    });
    return batch;
  }());
  EXPECT_TRUE(at::allclose(raw[0][0], constant, 1e-5, 1e-6));
}

TEST_F(Embed, IsTheSameAloneInBatchesAndPacked) {
  const data::Pool documents = pool(texts());
  const at::Tensor alone = embed_documents(documents, 0, 23, {.batch_tokens = 1}, at::kCPU, encoder.encode());
  const at::Tensor batches = embed_documents(documents, 0, 23, {.batch_tokens = 100}, at::kCPU, encoder.encode());
  const at::Tensor packed =
      embed_documents(documents, 0, 23, {.max_tokens = 24, .batch_tokens = 72, .packs = true}, at::kCPU, encoder.encode());
  EXPECT_LT((alone - batches).abs().max().item<float>(), 1e-5f);
  EXPECT_LT((alone - packed).abs().max().item<float>(), 1e-5f);
  EXPECT_LT((alone.norm(2, 1) - 1).abs().max().item<float>(), 1e-5f);
  const at::Tensor part = embed_documents(documents, 7, 4, {}, at::kCPU, encoder.encode());
  EXPECT_LT((alone.narrow(0, 7, 4) - part).abs().max().item<float>(), 1e-5f);
}

TEST_F(Embed, ReadsPromptsAnswersOrBoth) {
  const data::Pool documents = pool("{\"instruction\": \"Say it\", \"output\": \"abc\"}\n");
  const auto text_of = [&](EmbeddedText text) {
    std::string bytes;
    for (const int64_t token : embedded_tokens(documents, 0, {.text = text})) bytes += token < 256 ? static_cast<char>(token) : '|';
    return bytes;
  };
  EXPECT_THAT(text_of(EmbeddedText::conversation), testing::AllOf(HasSubstr("Say it"), HasSubstr("abc")));
  EXPECT_THAT(text_of(EmbeddedText::prompt), testing::AllOf(HasSubstr("Say it"), testing::Not(HasSubstr("abc"))));
  EXPECT_THAT(text_of(EmbeddedText::answer), testing::AllOf(testing::Not(HasSubstr("Say it")), HasSubstr("abc")));
  EXPECT_THAT(text_of(EmbeddedText::first_turn), testing::AllOf(HasSubstr("Say it"), HasSubstr("abc")));
}

TEST_F(Embed, ListsDocumentsThatHaveNothingToRead) {
  const data::Pool documents = pool(texts());
  EXPECT_THAT(refused([&] { embed_documents(documents, 2, 3, {.text = EmbeddedText::prompt}, at::kCPU, encoder.encode()); }),
              HasSubstr("documents 2, 3, 4: they have nothing that --text prompt reads"));
  const auto broken = [](const mesh::Batch& batch) { return at::full({batch.samples(), 1, 4}, NAN); };
  EXPECT_THAT(refused([&] { embed_documents(documents, 2, 1, {}, at::kCPU, broken); }),
              HasSubstr("documents 2: their vectors are not finite"));
}

TEST_F(Embed, ScoresDocumentsByPerplexityAndIfd) {
  const data::Pool documents =
      pool("{\"instruction\": \"ab\", \"output\": \"xyz\"}\n{\"instruction\": \"cd\", \"output\": \"q\"}\n", "plain");
  SmallModel& small = encoder.small;
  const EvaluatedModel evaluated = small.evaluated();
  const std::vector<float> perplexity = document_scores(evaluated, documents, "perplexity", {.max_tokens = 100, .batch = 4});
  const std::vector<float> ifd = document_scores(evaluated, documents, "ifd", {.max_tokens = 100, .batch = 4});
  for (int64_t document = 0; document < 2; ++document) {
    std::vector<int64_t> tokens;
    std::vector<bool> targets;
    documents.read(document, 100, tokens, &targets);
    const std::vector<int32_t> ids(tokens.begin(), tokens.end());
    const std::vector<double> logs = small.log_probabilities(ids);
    double with_prompt = 0, alone = 0, count = 0;
    std::vector<int32_t> answer{256};
    for (size_t i = 1; i < ids.size(); ++i)
      if (targets[i]) with_prompt -= logs[i - 1], count += 1, answer.push_back(ids[i]);
    for (const double log_p : small.log_probabilities(answer)) alone -= log_p;
    EXPECT_NEAR(perplexity[static_cast<size_t>(document)], std::exp(with_prompt / count), 1e-2 * std::exp(with_prompt / count));
    EXPECT_NEAR(ifd[static_cast<size_t>(document)], with_prompt / alone, 1e-3);
  }
  const data::Pool plain = pool(texts());
  EXPECT_THAT(refused([&] { document_scores(evaluated, plain, "ifd", {.max_tokens = 20, .batch = 4}); }),
              HasSubstr("they have no prompt or no answer"));
}

}  // namespace
}  // namespace cairn::evaluate
