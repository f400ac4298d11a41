// A subset of the documents of a pool, as `cairn select` writes it and data.subset reads it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace cairn::data {

// Documents by their number in the pool: over all of its sources, in order, from 0.
struct DocumentSubset {
  uint64_t source = 0;                                  // pool_digest() of what it was chosen from
  int64_t documents = 0;                                // of the pool
  std::vector<int64_t> ids = {};                        // ascending
  std::vector<float> weights = {};                      // of each; empty: all weigh 1
  std::string method = {};                              // "dedup"
  uint64_t input = 0;                                   // hash of everything that decided it: a repeated command finds its result
  base::OrderedJson how = base::OrderedJson::object();  // options and figures of the choice, for people

  uint64_t hash() const;  // of ids and weights; the same on every machine and any number of ranks
};

void write_subset(const std::string& path, const DocumentSubset& subset);
// Refuses damaged files, and ids or weights that cannot be.
DocumentSubset read_subset(const std::string& path);
// Refuses, naming `option`, a subset of other data than these.
void check_source(const DocumentSubset& subset, const std::string& option, const std::string& path, uint64_t source, int64_t documents);

// One number for each document of a pool, by name: "perplexity".
struct ScoreColumn {
  uint64_t source = 0;
  std::string name;
  std::vector<float> scores;
  uint64_t input = 0;  // as above
};

void write_column(const std::string& path, const ScoreColumn& column);
// Refuses damaged files, and scores that are not finite.
ScoreColumn read_column(const std::string& path);
void check_source(const ScoreColumn& column, const std::string& option, const std::string& path, uint64_t source, int64_t documents);

}  // namespace cairn::data
