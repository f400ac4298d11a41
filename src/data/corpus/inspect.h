// What a source file holds, for people.
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
  int64_t target_bytes = 0;  // of these, asked for
  int64_t tokens = 0;        // of token shards
  BadLines bad;
  Document first;  // its beginning
};

// Reads all of the file, in bounded memory. Of llm.c's shards, documents are told by GPT-2's (or Llama 3's) end of text.
Inspection inspect(const SourceFile& file, DocumentOptions document_options, const ChunkOptions& options);

}  // namespace cairn::data
