// Splits a file into JSON objects, one per line or the elements of one list, without parsing them: worker threads parse.
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/text.h"
#include "data/corpus/chunks.h"
#include "data/corpus/file_reader.h"

namespace cairn::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kBlockBytes = 256 << 10;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// A file's bytes, a block at a time.
class Blocks {
 public:
  explicit Blocks(const std::string& path) : file_(path), block_(kBlockBytes) {
    refill();
    if (rest().starts_with(kByteOrderMark)) skip(kByteOrderMark.size());
  }

  std::string_view rest() const { return {block_.data() + at_, have_ - at_}; }
  bool more() {
    if (at_ == have_) refill();
    return at_ < have_;
  }
  void skip(size_t bytes) { at_ += bytes; }
  int64_t offset() const { return before_ + static_cast<int64_t>(at_); }

 private:
  void refill() {
    before_ += static_cast<int64_t>(have_);
    have_ = file_.read(block_.data(), block_.size());
    at_ = 0;
  }

  FileReader file_;
  std::vector<char> block_;
  size_t have_ = 0;
  size_t at_ = 0;
  int64_t before_ = 0;
};

// Shared by the readers of records: the record being collected at the end of a chunk's text, and its size limit.
class Gathering {
 public:
  Gathering(const std::string& path, const ChunkOptions& options)
      : path_(path), bytes_max_(static_cast<size_t>(options.line_bytes)), refuse_long_(options.refuse_long) {}

  void begin(const Chunk& chunk, int64_t line) {
    begin_ = chunk.text.size();
    bytes_ = 0;
    line_ = line;
  }
  void add(Chunk& chunk, std::string_view bytes) {
    bytes_ += bytes.size();
    if (bytes_ <= bytes_max_) return void(chunk.text += bytes);
    if (refuse_long_) refuse(path_, {line_, fmt::format("a record longer than data.line_bytes = {}", bytes_max_)});
    chunk.text.resize(begin_);  // too long: only its length matters from here on
  }
  void end(Chunk& chunk) {
    if (bytes_ > bytes_max_) {
      return chunk.bad.push_back({line_, fmt::format("a record of {}, longer than data.line_bytes = {}",
                                                     base::human_bytes(static_cast<int64_t>(bytes_)), bytes_max_)});
    }
    size_t first = begin_;
    size_t last = chunk.text.size();
    while (first < last && is_space(chunk.text[first])) ++first;
    while (last > first && is_space(chunk.text[last - 1])) --last;
    if (last > first) chunk.pieces.push_back({static_cast<int64_t>(first), static_cast<int64_t>(last), line_, true});
  }
  int64_t line() const { return line_; }

 private:
  const std::string& path_;
  size_t bytes_max_;
  bool refuse_long_;
  size_t begin_ = 0;
  size_t bytes_ = 0;
  int64_t line_ = 1;
};

class LineReader final : public ChunkReader {
 public:
  LineReader(const std::string& path, const ChunkOptions& options)
      : path_(path), options_(options), blocks_(path), record_(path, options) {}

  bool next(Chunk& chunk) override {
    chunk.clear();
    chunk.path = &path_;
    chunk.records = true;
    while (static_cast<int64_t>(chunk.text.size()) < options_.chunk_bytes && chunk.bad.size() < 1024 && blocks_.more()) {
      record_.begin(chunk, line_);
      bool ended = false;
      while (!ended && blocks_.more()) {
        const std::string_view rest = blocks_.rest();
        const void* newline = std::memchr(rest.data(), '\n', rest.size());
        ended = newline != nullptr;
        const size_t bytes = ended ? static_cast<size_t>(static_cast<const char*>(newline) - rest.data()) : rest.size();
        record_.add(chunk, rest.substr(0, bytes));
        blocks_.skip(bytes + (ended ? 1 : 0));
      }
      record_.end(chunk);
      ++line_;
    }
    chunk.bytes_read = blocks_.offset();
    return !chunk.pieces.empty() || !chunk.bad.empty() || blocks_.more();
  }

 private:
  const std::string& path_;
  ChunkOptions options_;
  Blocks blocks_;
  Gathering record_;
  int64_t line_ = 1;
};

// Tracks strings and nesting only as far as needed to find the end of an element.
class ArrayReader final : public ChunkReader {
 public:
  ArrayReader(const std::string& path, const ChunkOptions& options)
      : path_(path), options_(options), blocks_(path), record_(path, options) {}

  bool next(Chunk& chunk) override {
    chunk.clear();
    chunk.path = &path_;
    chunk.records = true;
    while (static_cast<int64_t>(chunk.text.size()) < options_.chunk_bytes && chunk.bad.size() < 1024 && state_ != State::done) one(chunk);
    chunk.bytes_read = blocks_.offset();
    return !chunk.pieces.empty() || !chunk.bad.empty() || state_ != State::done;
  }

 private:
  enum class State { before, between, done };

  [[noreturn]] void fail(std::string_view why) const { base::fail_input("{}:{}: {}", path_, line_, why); }

  // The next byte that is no white space, 0 at the end of the file.
  char peek() {
    while (blocks_.more()) {
      const char c = blocks_.rest()[0];
      if (!is_space(c)) return c;
      line_ += c == '\n';
      blocks_.skip(1);
    }
    return 0;
  }

  void one(Chunk& chunk) {
    const char first = peek();
    if (state_ == State::before) {
      if (first != '[') fail("not a list of JSON objects: it does not begin with [; set data.format if it is something else");
      state_ = State::between;
      blocks_.skip(1);
      if (peek() == ']') finish();
      return;
    }
    if (first == 0) fail("the file ends before its list does: no ] was found");
    if (first == ',' || first == ']') fail("a record is missing before this comma or bracket");
    record_.begin(chunk, line_);
    if (!gather(chunk)) {
      chunk.text.resize(chunk.pieces.empty() ? 0 : static_cast<size_t>(chunk.pieces.back().end));
      chunk.bad.push_back({record_.line(), "the file ends inside this record"});
      state_ = State::done;
      return;
    }
    record_.end(chunk);
    const char after = peek();
    if (after == ']') return finish();
    if (after != ',') fail(after == 0 ? "the file ends before its list does: no ] was found" : "no comma between two records");
    blocks_.skip(1);
  }

  void finish() {
    blocks_.skip(1);
    if (peek() != 0) fail("more text after the end of the list");
    state_ = State::done;
  }

  // Adds one value; false where the file ends first.
  bool gather(Chunk& chunk) {
    int64_t depth = 0;
    bool in_string = false;
    bool escaped = false;
    while (blocks_.more()) {
      const std::string_view rest = blocks_.rest();
      for (size_t i = 0; i < rest.size(); ++i) {
        const char c = rest[i];
        line_ += c == '\n';
        if (escaped) {
          escaped = false;
        } else if (in_string) {
          escaped = c == '\\';
          in_string = c != '"';
        } else if (depth == 0 && (c == ',' || c == ']' || c == '}')) {  // after a number, a word, a string
          record_.add(chunk, rest.substr(0, i));
          blocks_.skip(i);
          return true;
        } else {
          in_string = c == '"';
          depth += (c == '{' || c == '[') - (c == '}' || c == ']');
          if (depth == 0 && (c == '}' || c == ']')) {
            record_.add(chunk, rest.substr(0, i + 1));
            blocks_.skip(i + 1);
            return true;
          }
        }
      }
      record_.add(chunk, rest);
      blocks_.skip(rest.size());
    }
    return false;
  }

  const std::string& path_;
  ChunkOptions options_;
  Blocks blocks_;
  Gathering record_;
  State state_ = State::before;
  int64_t line_ = 1;
};

}  // namespace

std::unique_ptr<ChunkReader> make_line_reader(const std::string& path, const ChunkOptions& options) {
  return std::make_unique<LineReader>(path, options);
}

std::unique_ptr<ChunkReader> make_array_reader(const std::string& path, const ChunkOptions& options) {
  return std::make_unique<ArrayReader>(path, options);
}

}  // namespace cairn::data
