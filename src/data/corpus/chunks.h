// Reads source files as chunks: each is enough work for one turn of a thread, and no more of a file is in memory.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus/bad_lines.h"
#include "data/corpus/source.h"
#include "data/corpus/source_file.h"

namespace cairn::data {

// Raw bytes of one file, and the documents or records in them. Readers reuse one chunk, so that its buffers are allocated once.
struct Chunk {
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t line = 1;           // line of its first byte, for errors
    bool ends_document = true;  // text only: a long document comes in several pieces
    bool begins_document = true;
  };
  const std::string* path = nullptr;  // lives as long as the reader
  bool records = false;               // pieces are JSON objects; false: text
  std::string text = {};
  std::vector<Piece> pieces = {};
  std::vector<BadLine> bad = {};  // lines that could not be read at all: too long, or cut off
  int64_t bytes_read = 0;         // of all files, up to and including this chunk

  std::string_view operator[](const Piece& piece) const {
    return std::string_view(text).substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin));
  }
  void clear();
};

// Whether a word ends between two bytes of plain text: where readers split a long text without knowing the tokenizer.
bool is_word_boundary(char before, char after);

struct ChunkOptions {
  int64_t chunk_bytes = 1 << 20;  // about this much text in one chunk
  int64_t line_bytes = 16 << 20;  // the longest line or record, and the longest text without a split point
  std::function<bool(char before, char after)> is_split_point =
      is_word_boundary;      // where a long text may be split: Tokenizer::is_split_point
  bool refuse_long = false;  // refuse a record that is too long; false: skip it and count it as bad
};

class ChunkReader {
 public:
  virtual ~ChunkReader() = default;
  // Replaces the content of `chunk`. Returns false, with an empty chunk, at the end. Memory is bounded: files are read by read(2).
  virtual bool next(Chunk& chunk) = 0;
};

// Reads one file after the other. None of them may hold tokens.
std::unique_ptr<ChunkReader> make_chunk_reader(std::vector<SourceFile> files, const ChunkOptions& options);
// Reads documents in memory, which must outlive the reader.
std::unique_ptr<ChunkReader> make_chunk_reader(const Documents& documents, const ChunkOptions& options);

// All documents of a plain text file, or of a folder or a pattern of them, in memory.
Documents read_text(const std::string& path);

// One reader per format; make_chunk_reader chooses. `path` must outlive the reader.
std::unique_ptr<ChunkReader> make_text_reader(const std::string& path, const ChunkOptions& options);
std::unique_ptr<ChunkReader> make_line_reader(const std::string& path, const ChunkOptions& options);
std::unique_ptr<ChunkReader> make_array_reader(const std::string& path, const ChunkOptions& options);

}  // namespace cairn::data
