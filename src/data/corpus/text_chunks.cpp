// Plain text: documents end at <|endoftext|> markers; a long one comes in pieces that end at split points of the tokenizer.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "data/corpus/chunks.h"
#include "data/corpus/file_reader.h"
#include "data/corpus/text_encoding.h"
#include "data/tokenizer.h"
#include "data/tokenizer/utf8_check.h"

namespace cairn::data {
namespace {

bool is_line_break(char c) { return c == '\n' || c == '\r'; }

// Refuses text in another encoding, and text of which a tenth is invalid UTF-8. A few wrong bytes pass.
void check_head(std::string_view head, const std::string& path) {
  if (const std::string encoding = narrow_encoding(head); !encoding.empty()) refuse_encoding("data.path", path, encoding);
  size_t wrong = 0;
  size_t first_wrong = 0;
  for (size_t at = 0; at < head.size();) {
    const size_t length = base::utf8_length(head, at);
    if (length == 0 && wrong++ == 0) first_wrong = at;
    at += length == 0 ? 1 : length;
  }
  if (wrong * 10 > head.size())
    base::fail_input("data.path = {}: a binary file ({:.0f} % of it is not UTF-8, first at offset {}); give a plain UTF-8 text file", path,
                     100.0 * static_cast<double>(wrong) / static_cast<double>(head.size()), first_wrong);
}

class TextReader final : public ChunkReader {
 public:
  TextReader(const std::string& path, const ChunkOptions& options) : path_(path), options_(options), file_(path) {}

  bool next(Chunk& chunk) override {
    chunk.clear();
    chunk.path = &path_;
    while (chunk.pieces.empty()) {
      read_more();
      if (waiting_.empty()) break;
      const size_t taken = take(chunk);
      if (taken == 0 && at_end_) break;
      waiting_.erase(0, taken);
      consumed_ += static_cast<int64_t>(taken);
    }
    chunk.bytes_read = consumed_ + left_out_;
    if (chunk.pieces.empty() && documents_ == 0)
      base::fail_input("data.path = {}: nothing but {} markers; give a file with text in it", path_, kEndOfText);
    return !chunk.pieces.empty();
  }

 private:
  // The last bytes are held back: they may become part of a marker, or of the line breaks before one.
  static constexpr size_t kMargin = 64;

  // Fills waiting_ to a chunk's size and a margin, or doubles it where it held no split point.
  void read_more() {
    size_t wanted = static_cast<size_t>(options_.chunk_bytes + options_.chunk_bytes / 4) + kMargin;
    if (no_cut_) wanted = 2 * std::max(waiting_.size(), wanted);
    if (at_end_ || waiting_.size() >= wanted) return;
    const size_t before = waiting_.size();
    waiting_.resize(wanted);
    waiting_.resize(before + file_.read(waiting_.data() + before, wanted - before));
    at_end_ = waiting_.size() < wanted;
    plain_line_ends(before);
    const std::string_view fresh = std::string_view(waiting_).substr(before);
    if (const size_t nul = fresh.find('\0'); nul != std::string_view::npos)
      base::fail_input("data.path = {}: a binary file (a NUL byte at offset {}); give a plain UTF-8 text file", path_,
                       consumed_ + left_out_ + static_cast<int64_t>(before + nul));
    if (consumed_ == 0 && before == 0) check_head(fresh.substr(0, 1 << 20), path_);
  }

  // Cleans the bytes from `begin` on: drops a byte-order mark at the beginning of the file and turns "\r\n" into "\n".
  void plain_line_ends(size_t begin) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    const size_t before = waiting_.size();
    if (consumed_ == 0 && begin == 0 && waiting_.starts_with(kByteOrderMark)) waiting_.erase(0, kByteOrderMark.size());
    if (char next = 0; !at_end_ && waiting_.ends_with('\r')) {  // the other half may be next
      at_end_ = file_.read(&next, 1) == 0;
      if (!at_end_) waiting_.push_back(next);
    }
    size_t to = waiting_.find("\r\n", begin);
    if (to != std::string::npos) {
      for (size_t from = to; from < waiting_.size(); ++from)
        if (waiting_[from] != '\r' || from + 1 == waiting_.size() || waiting_[from + 1] != '\n') waiting_[to++] = waiting_[from];
      waiting_.resize(to);
    }
    left_out_ += static_cast<int64_t>(before) - static_cast<int64_t>(waiting_.size());
  }

  // Moves whole documents, and as much of an unfinished one as may be split off, into the chunk. Returns the bytes of waiting_ consumed.
  size_t take(Chunk& chunk) {
    const std::string_view text = waiting_;
    size_t begin = 0;
    while (begin < text.size()) {
      if (at_start_ && consumed_ + static_cast<int64_t>(begin) > 0) {
        while (begin < text.size() && is_line_break(text[begin])) ++begin;
        if (begin == text.size()) return begin;
      }
      const size_t marker = text.find(kEndOfText, begin);
      if (marker == std::string_view::npos) return begin + take_unfinished(chunk, text.substr(begin));
      size_t end = marker;
      while (end > begin && is_line_break(text[end - 1])) --end;
      add(chunk, text.substr(begin, end - begin), true);
      begin = marker + kEndOfText.size();
    }
    return begin;
  }

  // A document without an end in waiting_: all of it at the end of the file, else about a chunk.
  size_t take_unfinished(Chunk& chunk, std::string_view rest) {
    if (at_end_) {
      add(chunk, rest, true);
      return rest.size();
    }
    if (!chunk.pieces.empty() && rest.size() < static_cast<size_t>(options_.chunk_bytes)) return 0;
    for (size_t at = std::min<size_t>(static_cast<size_t>(options_.chunk_bytes), rest.size()); at + kMargin < rest.size() + 1; ++at) {
      if (is_line_break(rest[at - 1]) || !options_.is_split_point(rest[at - 1], rest[at])) continue;
      add(chunk, rest.substr(0, at), false);
      return at;
    }
    no_cut_ = true;
    if (rest.size() > static_cast<size_t>(options_.line_bytes))
      base::fail_input(
          "data.path = {}: no place to cut in more than data.line_bytes = {} from offset {} on: no space, or the tokenizer takes documents "
          "only whole; put {} between documents, or raise data.line_bytes",
          path_, options_.line_bytes, consumed_ + left_out_, kEndOfText);
    return 0;
  }

  void add(Chunk& chunk, std::string_view text, bool ends) {
    if (!text.empty() || (ends && !at_start_)) {
      const auto begin = static_cast<int64_t>(chunk.text.size());
      chunk.text += text;
      chunk.pieces.push_back({begin, static_cast<int64_t>(chunk.text.size()), 1, ends, at_start_});
      ++documents_;
    }
    at_start_ = ends;
    no_cut_ = false;
  }

  const std::string& path_;
  ChunkOptions options_;
  FileReader file_;
  std::string waiting_;
  int64_t consumed_ = 0;   // bytes of text before waiting_
  int64_t left_out_ = 0;   // bytes of the file that are not part of the text
  int64_t documents_ = 0;  // pieces so far
  bool at_end_ = false;    // of the file
  bool at_start_ = true;   // of a document
  bool no_cut_ = false;    // waiting_ has no split point
};

}  // namespace

std::unique_ptr<ChunkReader> make_text_reader(const std::string& path, const ChunkOptions& options) {
  return std::make_unique<TextReader>(path, options);
}

}  // namespace cairn::data
