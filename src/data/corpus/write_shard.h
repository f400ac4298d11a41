// Writes a corpus as one token file that runs can read as it is.
#pragma once
#include <string>

#include "data/corpus.h"

namespace cairn::data {

struct WrittenShard {
  std::unique_ptr<Tokenizer> tokenizer;  // it was made with
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t bytes = 0;
};

// All sources of the options, one after the other. The file appears whole or not at all.
WrittenShard write_shard(const DataOptions& data, const CorpusOptions& options, const std::string& path, base::Log& log);

}  // namespace cairn::data
