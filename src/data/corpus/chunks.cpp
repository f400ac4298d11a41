#include "data/corpus/chunks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "data/tokenizer/word_split.h"

namespace cairn::data {
namespace {

std::unique_ptr<ChunkReader> reader_of(const SourceFile& file, const ChunkOptions& options) {
  switch (file.format) {
    case Format::text:
      return make_text_reader(file.path, options);
    case Format::jsonl:
      return make_line_reader(file.path, options);
    case Format::json:
      return make_array_reader(file.path, options);
    case Format::llmc:
    case Format::cairn:
      break;
  }
  CAIRN_CHECK(false, "{} holds tokens", file.path);
}

class FilesReader final : public ChunkReader {
 public:
  FilesReader(std::vector<SourceFile> files, const ChunkOptions& options) : files_(std::move(files)), options_(options) {}

  bool next(Chunk& chunk) override {
    for (; at_ < files_.size(); ++at_, reader_.reset()) {
      if (files_[at_].bytes == 0) continue;
      if (!reader_) reader_ = reader_of(files_[at_], options_);
      if (reader_->next(chunk)) {
        chunk.bytes_read += before_;
        return true;
      }
      before_ += files_[at_].bytes;
    }
    return false;
  }

 private:
  std::vector<SourceFile> files_;
  ChunkOptions options_;
  size_t at_ = 0;
  int64_t before_ = 0;
  std::unique_ptr<ChunkReader> reader_;
};

// Where to split `text` after at least a chunk's size: at a split point, so that the ids do not change.
size_t cut(std::string_view text, const ChunkOptions& options) {
  for (auto at = static_cast<size_t>(options.chunk_bytes); at < text.size(); ++at)
    if (options.is_split_point(text[at - 1], text[at])) return at;
  return text.size();
}

class MemoryReader final : public ChunkReader {
 public:
  MemoryReader(const Documents& documents, const ChunkOptions& options) : documents_(documents), options_(options) {}

  bool next(Chunk& chunk) override {
    chunk.clear();
    chunk.path = &documents_.origin;
    for (; at_ < documents_.size(); ++at_, done_ = 0) {
      const std::string_view document = documents_[at_];
      while (done_ < document.size()) {
        const std::string_view rest = document.substr(done_);
        const size_t take = cut(rest, options_);
        const auto begin = static_cast<int64_t>(chunk.text.size());
        if (begin > 0 && begin + static_cast<int64_t>(take) > options_.chunk_bytes) return true;
        chunk.text += rest.substr(0, take);
        chunk.pieces.push_back({begin, static_cast<int64_t>(chunk.text.size()), 1, done_ + take == document.size(), done_ == 0});
        done_ += take;
        chunk.bytes_read = documents_.spans[static_cast<size_t>(at_)].begin + static_cast<int64_t>(done_);
      }
    }
    return !chunk.pieces.empty();
  }

 private:
  const Documents& documents_;
  ChunkOptions options_;
  int64_t at_ = 0;
  size_t done_ = 0;  // bytes of document at_
};

}  // namespace

bool is_word_boundary(char before, char after) { return is_word_boundary_of(WordPattern::gpt2, before, after); }

void Chunk::clear() {
  text.clear();
  pieces.clear();
  bad.clear();
  records = false;
  bytes_read = 0;
}

std::unique_ptr<ChunkReader> make_chunk_reader(std::vector<SourceFile> files, const ChunkOptions& options) {
  return std::make_unique<FilesReader>(std::move(files), options);
}

std::unique_ptr<ChunkReader> make_chunk_reader(const Documents& documents, const ChunkOptions& options) {
  return std::make_unique<MemoryReader>(documents, options);
}

Documents read_text(const std::string& path) {
  Documents documents{.origin = "data.path = " + path, .text = {}, .spans = {}};
  constexpr int64_t kTextBytesMax = int64_t{1} << 30;
  const std::vector<SourceFile> files = find_files(path, "text", "data.path");
  int64_t bytes = 0;
  for (const SourceFile& file : files) bytes += file.bytes;
  if (bytes > kTextBytesMax)
    base::fail_input("{}: {}, and at most {} are read into memory here; give a part of it", path, base::human_bytes(bytes),
                     base::human_bytes(kTextBytesMax));
  const std::unique_ptr<ChunkReader> reader = make_chunk_reader(files, {});
  bool begins = true;
  for (Chunk chunk; reader->next(chunk);) {
    for (const Chunk::Piece& piece : chunk.pieces) {
      const auto begin = static_cast<int64_t>(documents.text.size());
      if (begins) documents.spans.push_back({begin, begin});
      documents.text += chunk[piece];
      documents.spans.back().end = static_cast<int64_t>(documents.text.size());
      begins = piece.ends_document;
    }
  }
  return documents;
}

}  // namespace cairn::data
