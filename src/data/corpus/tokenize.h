// Turns sources into token ids, in threads.
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

// How records become documents. Decides the ids, so caches know it by identity().
struct DocumentOptions {
  Renderer renderer = make_renderer("chatml");
  std::string text_field = "text";
  bool pairs = false;     // each record is a preference and gives two documents: prompt with chosen, prompt with rejected answer
  bool skip_bad = false;  // bad lines are left out and counted; else the first is refused
  std::string identity() const;
};

struct TokenizeOptions {
  int threads = 1;
  int64_t bytes = 0;                                             // of the sources, for progress
  std::function<void(int64_t bytes, int64_t of)> progress = {};  // called on the caller's thread, now and then; may be empty
};

// The documents that a chunk holds: what trainers of tokenizers learn from, and what `cairn data inspect` shows.
struct Document {
  std::vector<TextSegment> parts;
  bool ends = true;  // else its next piece comes with the next chunk
};
void documents_of(const Chunk& chunk, const DocumentOptions& document_options, std::vector<Document>& into, BadLines& bad);

// How a reader must cut for `tokenizer`, which must outlive it: only where the ids stay those of the whole document.
ChunkOptions chunk_options_for(const Tokenizer& tokenizer, ChunkOptions options);

// Writes the ids of each document in order, each followed by end_of_text, unless a record ends with it already; after a conversation it is
// asked for only where all of it is. Special tokens in a text are recognised. No token belongs to a stretch that is a target and to one
// that is not: a conversation has the ids of its whole text where each stretch begins and ends at a token and the text before it has the
// same ids alone, as it has when an answer is generated; otherwise its stretches are encoded apart. The same for any number of threads and,
// where `source` cuts as chunk_options_for says, any chunk size; at most a few chunks for each thread are in memory. Returns the bad lines
// that were left out. A tokenizer without end_of_text is refused.
BadLines tokenize(ChunkReader& source, const Tokenizer& tokenizer, const DocumentOptions& document_options, TokenWriter& into,
                  const TokenizeOptions& options = {});

}  // namespace cairn::data
