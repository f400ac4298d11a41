#include "data/tokenize.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"

namespace cairn::data {
namespace {

// One turn of a thread: whole documents, or a part of a long one.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  bool ends_document = false;
};

// Where to cut `text` after at least `bytes`: at a border, so that the ids do not change.
size_t cut(const Tokenizer& tokenizer, std::string_view text, size_t bytes) {
  for (size_t at = bytes; at < text.size(); ++at)
    if (tokenizer.is_border(text[at - 1], text[at])) return at;
  return text.size();
}

// Pieces of a chunk's size, with many small documents in one.
std::vector<std::vector<Piece>> plan(const Documents& documents, const Tokenizer& tokenizer, int64_t chunk_bytes) {
  std::vector<std::vector<Piece>> chunks(1);
  int64_t filled = 0;
  for (const Documents::Span& span : documents.spans) {
    for (int64_t begin = span.begin; begin < span.end;) {
      const std::string_view rest = std::string_view(documents.text).substr(begin, span.end - begin);
      const auto end = begin + static_cast<int64_t>(cut(tokenizer, rest, static_cast<size_t>(chunk_bytes)));
      if (filled > 0 && filled + (end - begin) > chunk_bytes) {
        chunks.emplace_back();
        filled = 0;
      }
      chunks.back().push_back({begin, end, end == span.end});
      filled += end - begin;
      begin = end;
    }
  }
  return chunks;
}

std::vector<int32_t> encode_chunk(const Documents& documents, const Tokenizer& tokenizer, const std::vector<Piece>& pieces) {
  std::vector<int32_t> ids;
  for (const Piece& piece : pieces) {
    tokenizer.encode(std::string_view(documents.text).substr(piece.begin, piece.end - piece.begin), {}, ids);
    if (piece.ends_document) ids.push_back(tokenizer.end_of_text());
  }
  return ids;
}

// Threads that take chunks in turn; the first exception ends the work and is carried to the caller.
class Crew {
 public:
  Crew(const Documents& documents, const Tokenizer& tokenizer, const std::vector<std::vector<Piece>>& chunks, int threads)
      : documents_(documents), tokenizer_(tokenizer), chunks_(chunks), results_(chunks.size()) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Crew() {
    {
      const std::lock_guard lock(mutex_);
      next_ = chunks_.size();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  // Waits for chunk `index`, whose ids may be taken away.
  std::vector<int32_t> take(size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || results_[index]; });
    if (failure_) std::rethrow_exception(failure_);
    return std::move(*results_[index]);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (next_ < chunks_.size() && !failure_) {
      const size_t mine = next_++;
      lock.unlock();
      std::optional<std::vector<int32_t>> ids;
      std::exception_ptr failure;
      try {
        ids = encode_chunk(documents_, tokenizer_, chunks_[mine]);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      results_[mine] = std::move(ids);
      if (failure) failure_ = failure;
      changed_.notify_all();
    }
  }

  const Documents& documents_;
  const Tokenizer& tokenizer_;
  const std::vector<std::vector<Piece>>& chunks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;
  std::vector<std::optional<std::vector<int32_t>>> results_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<int32_t> tokenize(const Documents& documents, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  CAIRN_CHECK(options.threads >= 1 && options.chunk_bytes >= 1, "{} threads, chunks of {} bytes", options.threads, options.chunk_bytes);
  const std::vector<std::vector<Piece>> chunks = plan(documents, tokenizer, options.chunk_bytes);
  const int threads = static_cast<int>(std::min<size_t>(options.threads, chunks.size()));
  std::optional<Crew> crew;
  if (threads > 1) crew.emplace(documents, tokenizer, chunks, threads);
  std::vector<int32_t> all;
  all.reserve(documents.text.size() / 3 + documents.spans.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::vector<int32_t> ids = crew ? crew->take(i) : encode_chunk(documents, tokenizer, chunks[i]);
    all.insert(all.end(), ids.begin(), ids.end());
    if (options.progress && !chunks[i].empty()) options.progress(chunks[i].back().end, static_cast<int64_t>(documents.text.size()));
  }
  return all;
}

}  // namespace cairn::data
