// Summary of a source file for `cairn data inspect`.
#pragma once
#include <cstdint>
#include <string>

#include "data/corpus/bad_lines.h"
#include "data/corpus/chunks.h"
#include "data/corpus/source_file.h"
#include "data/corpus/tokenize.h"

namespace cairn::data {

struct Inspection {
  int64_t documents = 0;
  int64_t text_bytes = 0;    // as rendered; 0 of token shards
  int64_t target_bytes = 0;  // of these, training targets
  int64_t tokens = 0;        // of token shards
  BadLines bad;
  Document first;  // the beginning of the first document
};

// Reads all of the file, in bounded memory. In llm.c's shards documents end at GPT-2's (or Llama 3's) end-of-text token.
Inspection inspect(const SourceFile& file, DocumentOptions document_options, const ChunkOptions& options);

}  // namespace cairn::data
