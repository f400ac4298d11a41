#include "data/retrieval/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "data/corpus.h"
#include "data/corpus/source_tokens.h"
#include "data/open.h"
#include "data/options.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

constexpr int64_t kBpeBytesMax = 32 << 20;  // a BPE is learned from at most this much text

std::unique_ptr<Tokenizer> learn_from(const RetrievalTexts& texts, const DataOptions& data, int threads) {
  if (data.vocab < 257) base::fail_input("data.vocab = {}: must be at least 257: 256 bytes and the token that ends a text", data.vocab);
  std::vector<std::string_view> parts;
  int64_t bytes = 0;
  for (const TextTable* table : {&texts.queries, &texts.collection})
    for (const std::string& text : table->texts) {
      if (bytes >= kBpeBytesMax) break;
      parts.push_back(text);
      bytes += static_cast<int64_t>(text.size());
    }
  return make_bpe_tokenizer(train_bpe(parts, {.vocab = data.vocab, .threads = threads}));
}

RetrievalTexts read_all(const DataOptions& data) {
  if (data.path.empty())
    base::fail_input("data.path: data.kind = {} reads a folder with queries, passages and pairs. Set it (docs/guides/retrieval.md).",
                     data.kind);
  if (!data.sources.empty()) base::fail_input("data.sources: data.kind = {} reads one folder. Set data.path in its place.", data.kind);
  if (!data.subset.empty()) base::fail_input("data.subset = {}: names documents, and these are queries. Leave it out.", data.subset);
  RetrievalTexts texts{
      .queries = read_queries(data.path), .collection = read_collection(data.path), .query_tokens = {}, .passage_tokens = {}, .pairs = {}};
  texts.pairs = read_pairs(data.path, texts.queries, texts.collection);
  return texts;
}

}  // namespace

RetrievalDataset::RetrievalDataset(RetrievalTexts texts, const RetrievalOptions& options, double held_out_fraction, int64_t padding,
                                   const std::string& origin)
    : texts_(std::move(texts)), options_(options), padding_(padding) {
  std::vector<bool> has_pairs(static_cast<size_t>(texts_.queries.size()));
  for (const TextPair& pair : texts_.pairs) has_pairs[static_cast<size_t>(pair.query)] = true;
  const auto queries = static_cast<int64_t>(std::count(has_pairs.begin(), has_pairs.end(), true));
  if (held_out_fraction == 0) return;
  if (queries < 2) base::fail_input("{}: {} with pairs, and some are held out: 2 or more are needed", origin, queries);
  int64_t left = std::clamp<int64_t>(std::llround(held_out_fraction * static_cast<double>(queries)), 1, queries - 1);
  int64_t first = texts_.queries.size();  // of the queries that are held out
  while (left > 0) left -= has_pairs[static_cast<size_t>(--first)];
  std::stable_partition(texts_.pairs.begin(), texts_.pairs.end(), [&](const TextPair& pair) { return pair.query < first; });
  held_out_ = std::count_if(texts_.pairs.begin(), texts_.pairs.end(), [&](const TextPair& pair) { return pair.query >= first; });
}

int64_t RetrievalDataset::tokens_in(int64_t sample) const {
  const TextPair& one = pair(sample);
  return static_cast<int64_t>(texts_.query_tokens[one.query].size() + texts_.passage_tokens[one.right].size() +
                              texts_.passage_tokens[one.wrong].size());
}

void RetrievalDataset::fill(std::span<const int64_t> ids, mesh::Batch& batch) const {
  const auto samples = static_cast<int64_t>(ids.size());
  int64_t length = 0;
  for (const int64_t id : ids) length = std::max(length, tokens_in(id));
  batch.ids = at::empty({samples}, at::kLong);
  std::copy(ids.begin(), ids.end(), batch.ids.data_ptr<int64_t>());
  batch.weights = at::Tensor();
  constexpr int64_t kTexts = 3;
  const at::Tensor tokens = at::full({samples, length}, padding_, at::kLong), documents = at::full({samples, length}, kTexts, at::kLong);
  const at::Tensor positions = at::zeros({samples, length}, at::kLong), pool = at::zeros({samples, kTexts, length});
  const at::Tensor scores = at::empty({samples, 2}, at::kDouble);
  for (int64_t i = 0; i < samples; ++i) {
    const TextPair& one = pair(ids[static_cast<size_t>(i)]);
    int64_t begin = 0;
    const std::span<const int32_t> texts[] = {texts_.query_tokens[one.query], texts_.passage_tokens[one.right],
                                              texts_.passage_tokens[one.wrong]};
    for (int64_t k = 0; k < kTexts; ++k) {
      const auto count = static_cast<int64_t>(texts[k].size());
      std::copy(texts[k].begin(), texts[k].end(), tokens.data_ptr<int64_t>() + i * length + begin);
      std::fill_n(documents.data_ptr<int64_t>() + i * length + begin, count, k);
      for (int64_t t = 0; t < count; ++t) positions.data_ptr<int64_t>()[i * length + begin + t] = t;
      put_pool_weights(pool.data_ptr<float>() + (i * kTexts + k) * length, begin, count, options_.pooling);
      begin += count;
    }
    scores.data_ptr<double>()[2 * i] = one.right_score, scores.data_ptr<double>()[2 * i + 1] = one.wrong_score;
  }
  batch.fields = {
      {"tokens", {tokens}}, {"documents", {documents}}, {"positions", {positions}}, {"pool", {pool}}, {"pair_scores", {scores}}};
}

void put_pool_weights(float* row, int64_t begin, int64_t count, RetrievalPooling pooling) {
  switch (pooling) {
    case RetrievalPooling::last:
      row[begin + count - 1] = 1;
      break;
    case RetrievalPooling::first:
      row[begin] = 1;
      break;
    case RetrievalPooling::mean:
      std::fill_n(row + begin, count, 1.0f / static_cast<float>(count));
      break;
  }
}

mesh::Batch encoder_batch(std::span<const std::span<const int32_t>> texts, const RetrievalPooling* pooling, int64_t padding) {
  const auto count = static_cast<int64_t>(texts.size());
  int64_t length = 1;
  for (const std::span<const int32_t> text : texts) length = std::max(length, static_cast<int64_t>(text.size()));
  mesh::Batch batch;
  batch.ids = at::arange(count, at::kLong);
  const at::Tensor tokens = at::full({count, length}, padding, at::kLong), lengths = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    std::copy(texts[static_cast<size_t>(i)].begin(), texts[static_cast<size_t>(i)].end(), tokens.data_ptr<int64_t>() + i * length);
    lengths.data_ptr<int64_t>()[i] = static_cast<int64_t>(texts[static_cast<size_t>(i)].size());
  }
  batch.fields = {{"tokens", {tokens}}, {"lengths", {lengths}}};
  if (!pooling) return batch;
  const at::Tensor pool = at::zeros({count, 1, length});
  for (int64_t i = 0; i < count; ++i)
    put_pool_weights(pool.data_ptr<float>() + i * length, 0, static_cast<int64_t>(texts[static_cast<size_t>(i)].size()), *pooling);
  batch.fields["pool"] = {pool};
  return batch;
}

void check_retrieval(const DataOptions& data) { read_all(data); }

OpenedData open_retrieval(const DataOptions& data, const CorpusOptions& options) {
  RetrievalTexts texts = read_all(data);
  OpenedData opened{.tokenizer = named_tokenizer(data), .length = data.length, .origin = "data.path = " + data.path};
  if (!opened.tokenizer) opened.tokenizer = learn_from(texts, data, options.threads);
  const RetrievalOptions& o = data.retrieval;
  const bool ends = ends_texts(o.pooling);
  texts.query_tokens = tokenize_texts(texts.queries, *opened.tokenizer, o.query_tokens, ends, options.threads);
  texts.passage_tokens = tokenize_texts(texts.collection, *opened.tokenizer, o.passage_tokens, ends, options.threads);
  texts.queries.texts.clear(), texts.collection.texts.clear();
  base::Checksum pairs;
  for (const TextPair& pair : texts.pairs) pairs.add(std::as_bytes(std::span(&pair, 1)));
  opened.digest = combine({texts.query_tokens.digest(), texts.passage_tokens.digest(), pairs.value()});
  opened.samples = std::make_unique<RetrievalDataset>(std::move(texts), o, options.held_out_fraction,
                                                      opened.tokenizer->find_end_of_text().value_or(0), opened.origin);
  return opened;
}

int64_t longest_sample(const RetrievalOptions& options) { return options.query_tokens + 2 * options.passage_tokens; }

int64_t positions_needed(const DataOptions& data) {
  return data.needs().retrieval ? std::max(data.retrieval.query_tokens, data.retrieval.passage_tokens) : data.length;
}

const RetrievalDataset* retrieval_samples(const Dataset* samples) { return dynamic_cast<const RetrievalDataset*>(samples); }

}  // namespace cairn::data
