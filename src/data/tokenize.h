// Turns documents into one long list of token ids.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "data/source.h"
#include "data/tokenizer.h"

namespace cairn::data {

struct TokenizeOptions {
  int threads = 1;
  int64_t chunk_bytes = 1 << 20;                                 // text is cut into about this much for each turn of a thread
  std::function<void(int64_t bytes, int64_t of)> progress = {};  // called on the caller's thread, now and then; may be empty
};

// The ids of each document in order, each followed by end_of_text. The same for any number of threads and any chunk size.
std::vector<int32_t> tokenize(const Documents& documents, const Tokenizer& tokenizer, const TokenizeOptions& options = {});

}  // namespace cairn::data
