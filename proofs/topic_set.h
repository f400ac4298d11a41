// A synthetic retrieval set with topics, for the proof of tas-balanced: what is relevant is known for every query and passage.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/retrieval/texts.h"
#include "train/start.h"

namespace cairn::study {

// 50 topics of 30 passages. A passage has 24 words: 45 % of its topic's 40 words, 35 % of five entity words of its own (of 20 in the
// topic), the rest any of the vocabulary's 3,000. A query has 3 words of a topic and 3 entity words of one passage, the right one. A
// teacher knows 3 [same topic] + 2 (common entity words). A training query's eight wrong passages are half of its topic, half any.
class TopicSet {
 public:
  // Writes queries.tsv, collection.tsv, pairs.tsv, qrels.tsv (of test queries alone) and tokenizer.json, with a token for each word.
  TopicSet(const std::filesystem::path& folder, uint64_t seed);

  const std::string& folder() const { return folder_; }
  const std::string& tokenizer() const { return tokenizer_; }
  int64_t training_queries() const { return kTraining; }
  // Of all queries and passages: float [queries, passages].
  const at::Tensor& scores() const { return scores_; }
  train::PassageScores teacher() const;

 private:
  static constexpr int64_t kTraining = 3000, kTest = 750;
  std::string folder_, tokenizer_;
  at::Tensor scores_;
};

}  // namespace cairn::study
