// The recipe's data.* keys.
#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::data {

struct DataOptions {
  std::string kind = "text";      // text or spirals
  std::string path;               // empty: the built-in stories
  std::string tokenizer = "bpe";  // bytes or bpe
  std::string tokenizer_file;     // a tokenizer.json to use as it is
  int64_t vocab = 1024;           // ids of a tokenizer that is trained
  int64_t length = 128;           // tokens of a sample
  std::string sampler = "shuffled";
  int64_t stories_bytes = 4'000'000;
  int64_t stories_seed = 1;
};

base::Schema<DataOptions> data_schema();

}  // namespace cairn::data
