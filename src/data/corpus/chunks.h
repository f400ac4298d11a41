// Source files cut into stretches small enough for one turn of a thread, without holding more of them than that.
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

// Raw bytes of one file and where documents or records lie in them. Whoever reads chunk after chunk reuses one, so that its buffers
// are allocated once.
struct Chunk {
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t line = 1;           // where it begins, for messages
    bool ends_document = true;  // of text: a long document comes in several pieces
  };
  const std::string* path = nullptr;  // lives as long as the reader
  bool records = false;               // pieces are JSON objects; else text
  std::string text = {};
  std::vector<Piece> pieces = {};
  std::vector<BadLine> bad = {};  // lines that could not even be cut out: too long, cut off
  int64_t bytes_read = 0;         // of all files, up to here

  std::string_view operator[](const Piece& piece) const {
    return std::string_view(text).substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin));
  }
  void clear();
};

// Between the words of plain English text: where readers cut that do not know the tokenizer.
bool is_word_boundary(char before, char after);

struct ChunkOptions {
  int64_t chunk_bytes = 1 << 20;  // about this much text in one chunk
  int64_t line_bytes = 16 << 20;  // the longest line or record that is taken, and the longest stretch of text without a place to cut
  std::function<bool(char before, char after)> is_split_point =
      is_word_boundary;      // where a long text may be cut; Tokenizer::is_split_point
  bool refuse_long = false;  // a record that is too long is refused at once; else it is read to its end and counted as bad
};

class ChunkReader {
 public:
  virtual ~ChunkReader() = default;
  // Replaces what is in `chunk`; false, and nothing in it, at the end. Reads files with read(2) into a buffer of bounded size.
  virtual bool next(Chunk& chunk) = 0;
};

// One file after the other. None of them may hold tokens.
std::unique_ptr<ChunkReader> make_chunk_reader(std::vector<SourceFile> files, const ChunkOptions& options);
// Documents in memory, which must outlive the reader.
std::unique_ptr<ChunkReader> make_chunk_reader(const Documents& documents, const ChunkOptions& options);

// All documents of a plain text file, or of a folder or a pattern of them, in memory.
Documents read_text(const std::string& path);

// One kind of file each; the above choose. `path` must outlive the reader.
std::unique_ptr<ChunkReader> make_text_reader(const std::string& path, const ChunkOptions& options);
std::unique_ptr<ChunkReader> make_line_reader(const std::string& path, const ChunkOptions& options);
std::unique_ptr<ChunkReader> make_array_reader(const std::string& path, const ChunkOptions& options);

}  // namespace cairn::data
