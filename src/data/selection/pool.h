// The documents that are selected from: what a recipe's data.* keys name, numbered over all sources.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/options.h"

namespace cairn::base {
class Log;
}

namespace cairn::data {

class DataCache;
struct Source;

// A hash of what decides which documents there are and what they say: the content of all sources in order, and the keys that choose text
// and records. Independent of tokenizer, packing and paths.
uint64_t pool_digest(const std::vector<Source>& sources, const DataOptions& data, const DataCache& cache);

// Tokenized documents of a pool, numbered from 0 over all sources.
class Pool {
 public:
  Pool(Corpus corpus, DataOptions data);

  int64_t documents() const { return firsts_.back(); }
  int64_t sources() const { return static_cast<int64_t>(firsts_.size()) - 1; }
  int64_t source_of(int64_t document) const;
  const std::string& origin(int64_t source) const { return corpus_.origins[static_cast<size_t>(source)]; }
  uint64_t digest() const { return corpus_.pool_digest; }
  const Corpus& corpus() const { return corpus_; }
  const DataOptions& data() const { return data_; }

  // The token ids of a document, at most `count` of them. `targets`: whether each is a training target; may be null.
  void read(int64_t document, int64_t count, std::vector<int64_t>& tokens, std::vector<bool>* targets) const;
  int64_t tokens_in(int64_t document) const;
  // A hash of the tokens of these documents.
  uint64_t digest_of(int64_t first, int64_t count) const;

 private:
  struct Place {
    const TokenStream* stream;
    int64_t document;
  };
  Place place(int64_t document) const;

  Corpus corpus_;
  DataOptions data_;
  std::vector<int64_t> firsts_;  // the first document of each source, and the end
};

// Opens the pool that these keys name. Refuses kinds of data without documents.
Pool open_pool(const DataOptions& data, CorpusOptions options, base::Log& log);

// A document as its file has it.
struct PoolRecord {
  int64_t document = 0;
  std::string json = {};   // one line: the record itself, or {"text": ...} of a text without records
  std::string label = {};  // the field that was asked for; empty: it has none
  std::string text = {};   // as the template writes it
};

// Reads all sources once more and calls `act` for each document, in order. `label`: a field of the records; empty: none is wanted. Refuses
// token shards, which have no records.
void for_each_record(const DataOptions& data, const std::string& label, const std::function<void(const PoolRecord&)>& act);

}  // namespace cairn::data
