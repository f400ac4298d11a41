// Turns sources into token ids, with worker threads.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/chat/renderer.h"
#include "data/corpus/bad_lines.h"
#include "data/corpus/chunks.h"
#include "data/corpus/token_file.h"
#include "data/tokenizer.h"

namespace cairn::data {

// How records become documents. It decides the ids, so cache keys contain identity().
struct DocumentOptions {
  Renderer renderer = make_renderer("chatml");
  std::string text_field = "text";
  bool pairs = false;     // each record is a preference pair and gives two documents: prompt + chosen, prompt + rejected
  bool skip_bad = false;  // skip and count bad lines; false: refuse the first
  std::string identity() const;
};

struct TokenizeOptions {
  int threads = 1;
  int64_t bytes = 0;                                             // in all sources, for progress
  std::function<void(int64_t bytes, int64_t of)> progress = {};  // called on the caller's thread now and then; may be empty
};

// A document of a chunk: what tokenizers are learned from, and what `cairn data inspect` shows.
struct Document {
  std::vector<TextSegment> parts;
  bool ends = true;              // false: it continues in the next chunk
  bool is_conversation = false;  // a template wrote it, with what it begins with
};
void documents_of(const Chunk& chunk, const DocumentOptions& document_options, std::vector<Document>& into, BadLines& bad);

// Chunk options that split text only where `tokenizer` gives the same ids as for the whole document. The tokenizer must outlive them.
ChunkOptions chunk_options_for(const Tokenizer& tokenizer, ChunkOptions options);

// Writes the ids of each document in order, each followed by end_of_text unless the record ends with it already. Before a text stand the
// tokenizer's begin_ids(); before a conversation what its template writes. After a conversation,
// end_of_text is a target only where the whole conversation is. Special tokens in a text are recognised.
//
// No token mixes targets and non-targets. A conversation gets the ids of its whole text if every segment begins and ends at a token and the
// text before it has the same ids alone, as it has when an answer is generated. Otherwise its segments are encoded separately.
//
// The result does not depend on the number of threads nor, where `source` uses chunk_options_for, on the chunk size. At most a few chunks
// per thread are in memory. Returns the bad lines that were skipped. Refuses a tokenizer without end_of_text.
BadLines tokenize(ChunkReader& source, const Tokenizer& tokenizer, const DocumentOptions& document_options, TokenWriter& into,
                  const TokenizeOptions& options = {});

}  // namespace cairn::data
