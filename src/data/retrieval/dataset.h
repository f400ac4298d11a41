// Queries with right and wrong passages as a data set.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/retrieval/options.h"
#include "data/retrieval/texts.h"
#include "data/tokenizer.h"

namespace cairn::data {

// What a retrieval set holds, in tokens.
struct RetrievalTexts {
  TextTable queries, collection;  // without texts
  TokenTable query_tokens, passage_tokens;
  std::vector<TextPair> pairs;
};

// A sample is a pair: a query, a right passage and a wrong one. Sample ids are numbers of pairs, so a sampler that chooses queries also
// chooses one of their pairs. The pairs of the last `held_out_fraction` of the queries are held out; they have the last ids.
//
// The three texts of a sample lie one after the other in one row, each a document of its own. Fields on the CPU: tokens, documents and
// positions int64 [samples, longest]; pool float [samples, 3, longest], the weights that make vectors of query, right and wrong passage
// (model/decoder/decoder.h); pair_scores double [samples, 2].
class RetrievalDataset final : public Dataset {
 public:
  RetrievalDataset(RetrievalTexts texts, const RetrievalOptions& options, double held_out_fraction, int64_t padding,
                   const std::string& origin);

  SampleRange training() const override { return {0, size() - held_out_}; }
  SampleRange held_out() const override { return {size() - held_out_, held_out_}; }
  int64_t tokens_in(int64_t sample) const override;  // that are read
  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override;

  const TextPair& pair(int64_t sample) const { return texts_.pairs.at(static_cast<size_t>(sample)); }
  const RetrievalTexts& texts() const { return texts_; }
  // Clusters of queries, by number, that were made for this run (data.sampler = "tas" without sampler.clusters). Set before anybody reads.
  void set_clusters(std::vector<std::vector<int64_t>> clusters) { clusters_ = std::move(clusters); }
  const std::vector<std::vector<int64_t>>& clusters() const { return clusters_; }
  int64_t size() const { return static_cast<int64_t>(texts_.pairs.size()); }

 private:
  RetrievalTexts texts_;
  RetrievalOptions options_;
  std::vector<std::vector<int64_t>> clusters_;
  int64_t held_out_ = 0, padding_ = 0;
};

// Writes the weights of one text's tokens into a row of a pool field: those of positions begin .. begin + count - 1.
void put_pool_weights(float* row, int64_t begin, int64_t count, RetrievalPooling pooling);

// Rows for an encoder: each text alone, as long as the longest, filled up with `padding`. Fields tokens int64 [texts, longest], pool float
// [texts, 1, longest] where `pooling` is given, and lengths int64 [texts].
mesh::Batch encoder_batch(std::span<const std::span<const int32_t>> texts, const RetrievalPooling* pooling, int64_t padding);

struct DataOptions;
struct CorpusOptions;
struct OpenedData;

// data.path as a folder (texts.h). The tokenizer is the one that the options name, or is learned from queries and passages.
OpenedData open_retrieval(const DataOptions& data, const CorpusOptions& options);
// Whether `pooling` needs texts that end with a token of their own.
inline bool ends_texts(RetrievalPooling pooling) { return pooling == RetrievalPooling::last; }
// Refuses options that retrieval does not have, and damaged files. Reads everything but does not tokenize.
void check_retrieval(const DataOptions& data);

// The tokens of the longest sample: all three texts. And those of the longest text, or sample of other data: the positions a model needs.
int64_t longest_sample(const RetrievalOptions& options);
int64_t positions_needed(const DataOptions& data);

// The retrieval set behind a sampler's or a run's samples; null: they are none.
const RetrievalDataset* retrieval_samples(const Dataset* samples);

}  // namespace cairn::data
