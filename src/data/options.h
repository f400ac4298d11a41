// The recipe's data.* keys.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"
#include "data/kinds.h"
#include "data/samples/packing.h"

namespace cairn::data {

struct DataOptions {
  std::string kind = "text";         // a name of data_kinds()
  std::string path;                  // empty, and no sources: the built-in stories
  std::vector<std::string> sources;  // a mixture
  std::vector<double> weights;       // of the sources; empty: by size
  std::string format = "auto";
  std::string text_field = "text";
  std::string chat_template = "auto";  // data.template
  bool learn_prompts = false;
  std::string on_bad = "refuse";  // refuse or skip
  int64_t line_bytes = 16 << 20;
  std::string tokenizer = "bpe";     // bytes or bpe
  std::string tokenizer_file;        // a tokenizer.json to use as it is
  int64_t vocab = 1024;              // ids of a tokenizer that is trained
  int64_t length = 128;              // tokens of a sample
  std::string packing = "stream";    // a name of packing_names()
  std::string sampler = "shuffled";  // a name of sampler_names()
  int64_t stories_bytes = 4'000'000;
  int64_t stories_seed = 1;

  // The words above as types.
  const DataNeeds& needs() const { return data_needs(kind); }
  Packing packing_mode() const { return parse_packing(packing); }
  bool skips_bad_lines() const { return on_bad == "skip"; }
  bool learns_tokenizer() const { return tokenizer_file.empty() && tokenizer == "bpe"; }
};

base::Schema<DataOptions> data_schema();

}  // namespace cairn::data
