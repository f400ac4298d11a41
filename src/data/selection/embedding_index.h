// Vectors of documents in a folder: made once, continued after an interruption, searched often.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/search/rows.h"

namespace cairn::data {

// What vectors were made with. Vectors that differ in one of these cannot be compared.
struct EmbeddingFacts {
  std::string model;    // hash of the weights
  std::string text;     // how documents became tokens: tokenizer, template, which part, how many tokens
  std::string pooling;  // "weighted_mean"
  int64_t dim = 0;
};

// A folder with index.json and files of fp16 rows, one for each run of consecutive documents ("shard"). A file grows as rows are made;
// complete, it ends with the hash of its documents and a checksum. After an interruption the rows of an incomplete file are kept. A pool
// that has grown at its end keeps all vectors of its old documents.
class EmbeddingIndex {
 public:
  // A hash of the tokens of documents first .. first + count - 1.
  using DigestOf = std::function<uint64_t(int64_t first, int64_t count)>;
  // Opens the folder, or begins one. Refuses vectors of another model, template or pooling, naming `option`.
  EmbeddingIndex(std::filesystem::path folder, EmbeddingFacts facts, int64_t documents, DigestOf digest, const std::string& option);

  struct Shard {
    int64_t first = 0;
    int64_t count = 0;  // of documents
  };
  const std::vector<Shard>& shards() const { return shards_; }
  const EmbeddingFacts& facts() const { return facts_; }
  // Whether all rows of a shard are there, and of these documents.
  bool is_complete(size_t shard) const;

  // Adds rows to a shard. One process at a time.
  class Writer {
   public:
    Writer(Writer&& other) noexcept;
    ~Writer();
    int64_t done() const { return done_; }  // rows that are there
    void append(const at::Tensor& rows);    // fp32 [count, dim]
    void finish();                          // after the last row

   private:
    friend class EmbeddingIndex;
    Writer(const EmbeddingIndex& index, size_t shard);
    const EmbeddingIndex* index_;
    Shard shard_;
    std::filesystem::path path_;
    int64_t done_ = 0;
    struct Open;
    std::unique_ptr<Open> open_;
  };
  Writer write(size_t shard) const { return {*this, shard}; }

  // All rows, scaled to unit length once more. Refuses an incomplete or damaged file. The index may go.
  std::unique_ptr<RowSource> open() const;

 private:
  std::filesystem::path path_of(size_t shard) const;

  std::filesystem::path folder_;
  EmbeddingFacts facts_;
  DigestOf digest_;
  std::vector<Shard> shards_;
};

}  // namespace cairn::data
