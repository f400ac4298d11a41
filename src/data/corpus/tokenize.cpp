#include "data/corpus/tokenize.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "data/corpus/record.h"

namespace cairn::data {
namespace {

// The ids of one chunk.
struct Encoded {
  std::vector<int32_t> tokens;
  std::vector<int64_t> ends;     // positions in `tokens` where documents end
  std::vector<uint8_t> targets;  // one per token; empty: all are targets
  BadLines bad;
  int64_t bytes_read = 0;
};

// Encodes documents independently: neither the tokenizer's prefix at the beginning of a text nor whitespace that a special token absorbs
// depends on the document before.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, int32_t end, Encoded& out)
      : tokenizer_(tokenizer), begin_(tokenizer.begin_ids()), end_(end), out_(out) {}

  // A document, or a piece of one, in which every token is a target.
  void add(std::string_view text, const Chunk::Piece& piece) {
    if (piece.begins_document) begin();
    append(text, true);
    if (piece.ends_document) end(true);
  }

  void add(const Document& document) {
    const size_t first = out_.tokens.size();
    if (!document.is_conversation) begin();
    join(document.parts);
    if (segments_.size() < 2 || splits_at_boundaries() || !add_whole()) add_apart();
    const bool ends_as_target = std::ranges::all_of(segments_, [](const TokenSegment& one) { return one.is_target; });
    if (!document.ends) return;
    if (out_.tokens.size() > first && out_.tokens.back() == end_)
      out_.ends.push_back(static_cast<int64_t>(out_.tokens.size()));
    else
      end(ends_as_target);
  }

 private:
  // Up to byte `end` of the joined text.
  struct TokenSegment {
    size_t end;
    bool is_target;
  };

  // Joins neighbouring segments that are both targets or both not.
  void join(const std::vector<TextSegment>& parts) {
    joined_.clear();
    segments_.clear();
    for (const TextSegment& part : parts) {
      if (part.text.empty()) continue;
      joined_ += part.text;
      if (!segments_.empty() && segments_.back().is_target == part.is_target)
        segments_.back().end = joined_.size();
      else
        segments_.push_back({joined_.size(), part.is_target});
    }
  }

  void add_apart() {
    size_t at = 0;
    for (const TokenSegment& one : segments_) {
      append(std::string_view(joined_).substr(at, one.end - at), one.is_target);
      at = one.end;
    }
  }

  // Adds the ids of the whole text. Returns false and adds nothing where they equal those of the segments encoded separately, or where a
  // segment does not begin and end at a token boundary.
  bool add_whole() {
    const std::vector<int32_t> whole = tokenizer_.encode(joined_);
    std::vector<int32_t> apart;
    for (size_t i = 0, at = 0; i < segments_.size(); at = segments_[i++].end)
      tokenizer_.encode(std::string_view(joined_).substr(at, segments_[i].end - at), {}, apart);
    if (apart == whole) return false;
    std::vector<size_t> ends;
    for (const TokenSegment& one : segments_) {
      const std::vector<int32_t> before = tokenizer_.encode(std::string_view(joined_).substr(0, one.end));
      if (before.size() > whole.size() || !std::equal(before.begin(), before.end(), whole.begin())) return false;
      ends.push_back(before.size());
    }
    size_t at = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      out_.tokens.insert(out_.tokens.end(), whole.begin() + static_cast<ptrdiff_t>(at), whole.begin() + static_cast<ptrdiff_t>(ends[i]));
      mark(segments_[i].is_target);
      at = ends[i];
    }
    return true;
  }

  bool splits_at_boundaries() const {
    for (size_t i = 0; i + 1 < segments_.size(); ++i)
      if (!tokenizer_.is_split_point(joined_[segments_[i].end - 1], joined_[segments_[i].end])) return false;
    return true;
  }

  void append(std::string_view text, bool is_target) {
    if (text.empty()) return;
    tokenizer_.encode(text, {}, out_.tokens);
    mark(is_target);
  }

  void begin() {
    if (begin_.empty()) return;
    out_.tokens.insert(out_.tokens.end(), begin_.begin(), begin_.end());
    mark(true);
  }

  void end(bool is_target) {
    out_.tokens.push_back(end_);
    mark(is_target);
    out_.ends.push_back(static_cast<int64_t>(out_.tokens.size()));
  }

  // Marks the tokens added since the last call as targets, or not.
  void mark(bool is_target) {
    if (!is_target) out_.targets.resize(std::max(marked_, out_.targets.size()), 1);
    if (!is_target || !out_.targets.empty()) out_.targets.resize(out_.tokens.size(), is_target ? 1 : 0);
    marked_ = out_.tokens.size();
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> begin_;  // before a text
  int32_t end_;
  Encoded& out_;
  std::string joined_;
  std::vector<TokenSegment> segments_;
  size_t marked_ = 0;
};

// What all chunks need to become ids.
struct Encoding {
  const Tokenizer& tokenizer;
  const DocumentOptions& document_options;
  int32_t end;  // the token that ends a document
};

Encoded encode_chunk(const Chunk& chunk, const Encoding& how) {
  Encoded encoded;
  encoded.bytes_read = chunk.bytes_read;
  encoded.tokens.reserve(chunk.text.size() / 3 + 8);
  Encoder encoder(how.tokenizer, how.end, encoded);
  if (!chunk.records) {
    for (const Chunk::Piece& piece : chunk.pieces) encoder.add(chunk[piece], piece);
    return encoded;
  }
  std::vector<Document> documents;
  documents_of(chunk, how.document_options, documents, encoded.bad);
  for (const Document& document : documents) encoder.add(document);
  return encoded;
}

// Worker threads that encode chunks, a bounded number ahead of the consumer. The consumer takes results in the order of the chunks. A
// failure is stored with its chunk, so the consumer always meets the same one first, whatever the timing.
class ChunkEncoders {
 public:
  ChunkEncoders(ChunkReader& source, const Encoding& how, int threads) : source_(source), how_(how), ahead_(4 * threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ChunkEncoders() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // The next chunk in order; false after the last.
  bool take(Encoded& into) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.contains(taken_) || (ended_ && taken_ == begun_); });
    const auto found = results_.find(taken_);
    if (found == results_.end()) return false;
    if (found->second.failure) std::rethrow_exception(found->second.failure);
    into = std::move(found->second.encoded);
    results_.erase(found);
    ++taken_;
    lock.unlock();
    changed_.notify_all();
    return true;
  }

 private:
  struct Result {
    Encoded encoded;
    std::exception_ptr failure;
  };

  void work() {
    Chunk chunk;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ended_ || begun_ < taken_ + ahead_; });
      if (ended_) return;
      Result result;
      const int64_t mine = begun_;
      try {
        if (!source_.next(chunk)) {  // under the lock: one reads at a time
          ended_ = true;
          changed_.notify_all();
          return;
        }
        ++begun_;
        lock.unlock();
        result.encoded = encode_chunk(chunk, how_);
      } catch (...) {
        result.failure = std::current_exception();
      }
      if (!lock.owns_lock()) {
        lock.lock();
      } else {  // reading itself failed
        ++begun_;
      }
      if (result.failure) ended_ = true;
      results_.emplace(mine, std::move(result));
      changed_.notify_all();
    }
  }

  ChunkReader& source_;
  Encoding how_;
  int64_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t begun_ = 0;
  int64_t taken_ = 0;
  bool ended_ = false;  // nothing more is read
  std::map<int64_t, Result> results_;
  std::vector<std::thread> threads_;
};

// One JSON record as documents. Returns why it is unusable, or an empty string.
std::string record_documents(std::string_view json, const DocumentOptions& document_options, Record& record, std::vector<Document>& into) {
  if (std::string why = parse_record(json, document_options.text_field, record); !why.empty()) return why;
  if (document_options.pairs && record.kind != Record::Kind::preference)
    return "no fields \"chosen\" and \"rejected\", which data.kind = preference needs";
  if (record.kind == Record::Kind::text) {
    if (!record.text.empty()) into.push_back({{{std::move(record.text), true}}, true});
    return "";
  }
  const auto render = [&](const std::vector<ChatMessage>& messages) {
    Document document{document_options.renderer.render(messages), true, true};
    const bool ends_as_target = std::any_of(document.parts.begin(), document.parts.end(),
                                            [](const TextSegment& part) { return part.is_target && !part.text.empty(); });
    if (!ends_as_target) return false;
    into.push_back(std::move(document));
    return true;
  };
  const size_t before = into.size();
  const bool good = render(record.messages) && (!document_options.pairs || render(record.rejected));
  if (!good) into.resize(before);
  return good ? "" : "nothing to learn from: no message of the assistant";
}

}  // namespace

std::string DocumentOptions::identity() const {
  return fmt::format("{}|{}|{}|{}", renderer.identity, text_field, pairs ? "pairs" : "single", skip_bad ? "skip" : "refuse");
}

void documents_of(const Chunk& chunk, const DocumentOptions& document_options, std::vector<Document>& into, BadLines& bad) {
  if (!chunk.records) {
    for (const Chunk::Piece& piece : chunk.pieces) into.push_back({{{std::string(chunk[piece]), true}}, piece.ends_document});
    return;
  }
  std::vector<BadLine> found = chunk.bad;
  Record record;
  for (const Chunk::Piece& piece : chunk.pieces) {
    std::string why;
    try {
      why = record_documents(chunk[piece], document_options, record, into);
    } catch (const Error& error) {  // of the renderer
      if (error.kind() != Error::Kind::bad_input) throw;
      why = error.sentence();
    }
    if (!why.empty()) found.push_back({piece.line, std::move(why)});
  }
  std::stable_sort(found.begin(), found.end(), [](const BadLine& a, const BadLine& b) { return a.line < b.line; });
  for (const BadLine& one : found) {
    if (!document_options.skip_bad) refuse(*chunk.path, one);
    bad.add(*chunk.path, one);
  }
}

ChunkOptions chunk_options_for(const Tokenizer& tokenizer, ChunkOptions options) {
  options.is_split_point = [&tokenizer](char before, char after) { return tokenizer.is_split_point(before, after); };
  return options;
}

BadLines tokenize(ChunkReader& source, const Tokenizer& tokenizer, const DocumentOptions& document_options, TokenWriter& into,
                  const TokenizeOptions& options) {
  CAIRN_CHECK(options.threads >= 1, "{} threads", options.threads);
  const Encoding how{tokenizer, document_options, tokenizer.end_of_text()};
  BadLines bad;
  const auto keep = [&](const Encoded& encoded) {
    into.add(encoded.tokens, encoded.ends, encoded.targets);
    bad.add(encoded.bad);
    if (options.progress) options.progress(encoded.bytes_read, options.bytes);
  };
  if (options.threads == 1) {
    Chunk chunk;
    while (source.next(chunk)) keep(encode_chunk(chunk, how));
    return bad;
  }
  ChunkEncoders encoders(source, how, options.threads);
  for (Encoded encoded; encoders.take(encoded);) keep(encoded);
  return bad;
}

}  // namespace cairn::data
