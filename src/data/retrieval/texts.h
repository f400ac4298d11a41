// Queries, passages, pairs and judgements of a retrieval set, read from a folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer.h"

namespace cairn::data {

// Texts with ids, numbered from 0 in the order of the file.
struct TextTable {
  std::string path;
  std::vector<std::string> ids, texts;
  std::unordered_map<std::string, int64_t> numbers;  // by id

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
};

// FOLDER/NAME.tsv (lines "id<TAB>text") or FOLDER/NAME.jsonl ({"_id" or "id", "text", and perhaps "title", which is put before the text).
// Refuses a missing file, an id that comes twice, and lines that are neither, with file and line.
TextTable read_queries(const std::filesystem::path& folder);     // queries
TextTable read_collection(const std::filesystem::path& folder);  // collection, or corpus

// A query with one right and one wrong passage, by number, and the scores that a teacher gave them.
struct TextPair {
  int64_t query = 0, right = 0, wrong = 0;
  double right_score = 0, wrong_score = 0;
};
// FOLDER/pairs.tsv, lines "pos_score neg_score qid pos_id neg_id". Unknown ids are refused together: how many, and the first five.
std::vector<TextPair> read_pairs(const std::filesystem::path& folder, const TextTable& queries, const TextTable& collection);
// Whether the folder has judgements.
bool has_judgements(const std::filesystem::path& folder);
// FOLDER/qrels.tsv: the passages that people judged for each query, with grades; those of 0 are left out. Lines of TREC
// ("qid 0 pid grade") or "qid pid grade", with or without a first line of names. By query number, then passage number.
struct Judgement {
  int64_t passage = 0;
  double grade = 0;
};
std::vector<std::vector<Judgement>> read_judgements(const std::filesystem::path& folder, const TextTable& queries,
                                                    const TextTable& collection);

// The tokens of texts, one after the other.
class TokenTable {
 public:
  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  std::span<const int32_t> operator[](int64_t text) const;
  uint64_t digest() const;

 private:
  friend TokenTable tokenize_texts(const TextTable&, const Tokenizer&, int64_t, bool, int);
  std::vector<int32_t> tokens_;
  std::vector<int64_t> ends_;
};
// At most `tokens_max` of each text, at least one. `ends`: each ends with the tokenizer's end-of-text token, where it has one.
TokenTable tokenize_texts(const TextTable& texts, const Tokenizer& tokenizer, int64_t tokens_max, bool ends, int threads);

// Reads a file with one line for each cluster: query ids with spaces, tabs or commas between them. Refuses ids that are in no cluster file
// of these queries, and ids that come twice. By cluster: query numbers.
std::vector<std::vector<int64_t>> read_clusters(const std::filesystem::path& file, const TextTable& queries);
// The text of such a file. `labels`: the cluster of each query.
std::string format_clusters(const std::vector<int64_t>& queries, std::span<const int32_t> labels, const TextTable& table);

}  // namespace cairn::data
