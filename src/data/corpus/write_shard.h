// Writes a corpus as one token file that runs can read as it is.
#pragma once
#include <string>

#include "data/corpus.h"

namespace cairn::data {

struct WrittenShard {
  std::unique_ptr<Tokenizer> tokenizer;  // that made the ids
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t bytes = 0;
};

// Writes the tokens of all sources of the options into one token file, atomically.
WrittenShard write_shard(const DataOptions& data, const CorpusOptions& options, const std::string& path, base::Log& log);

}  // namespace cairn::data
