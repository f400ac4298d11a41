// The recipe's data.* keys.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"
#include "data/clips/options.h"
#include "data/images/options.h"
#include "data/kinds.h"
#include "data/retrieval/options.h"
#include "data/samples/packing.h"
#include "data/samples/sampler_options.h"

namespace cairn::data {

// What becomes of lines that cannot be used.
enum class OnBadLine { refuse, skip };
inline constexpr base::EnumName<OnBadLine> kOnBadLineNames[] = {{OnBadLine::refuse, "refuse"}, {OnBadLine::skip, "skip"}};

// The tokenizer of a run that names no tokenizer file: one id for each byte, or a BPE learned from the text.
enum class TokenizerKind { bytes, bpe };
inline constexpr base::EnumName<TokenizerKind> kTokenizerKindNames[] = {{TokenizerKind::bytes, "bytes"}, {TokenizerKind::bpe, "bpe"}};

struct DataOptions {
  std::string kind = "text";         // a name of data_kinds()
  std::string path;                  // empty, and no sources: the built-in stories
  std::vector<std::string> sources;  // a mixture
  std::vector<double> weights;       // of the sources; empty: by size
  std::string format = "auto";
  std::string text_field = "text";
  std::string chat_template = "auto";  // data.template
  std::string template_date;           // what strftime_now tells a template; empty: it is undefined
  bool train_on_prompts = false;
  OnBadLine on_bad = OnBadLine::refuse;
  int64_t line_bytes = 16 << 20;
  TokenizerKind tokenizer = TokenizerKind::bpe;
  std::string tokenizer_file;  // a tokenizer.json to use as it is
  int64_t vocab = 1024;        // ids of a tokenizer that is trained
  int64_t length = 128;        // tokens of a sample
  Packing packing = Packing::stream;
  std::string sampler = "shuffled";  // a name of sampler_names()
  SamplerOptions order;              // sampler.*
  std::string subset;                // a file that `cairn select` wrote; empty: all documents
  std::string label;                 // the field or column that holds a record's class; of tables, empty: the last column
  bool header = true;                // of tables: the first line names the columns
  std::vector<std::string> ignore;   // of tables: columns that are left out
  bool standardize = true;           // of tables: columns get mean 0 and deviation 1
  std::string test_file;             // of tables: held-out rows; empty: the last rows
  RetrievalOptions retrieval;        // retrieval.*
  ClipOptions clips;                 // clips.*
  ImageOptions images;               // images.*
  int64_t stories_bytes = 4'000'000;
  int64_t stories_seed = 1;

  const DataNeeds& needs() const { return data_needs(kind); }
  bool skips_bad_lines() const { return on_bad == OnBadLine::skip; }
  bool learns_tokenizer() const { return tokenizer_file.empty() && tokenizer == TokenizerKind::bpe; }
};

base::Schema<DataOptions> data_schema();

}  // namespace cairn::data
