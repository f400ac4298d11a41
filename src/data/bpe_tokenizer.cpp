#include "data/bpe_tokenizer.h"

#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "base/check.h"
#include "data/merge_table.h"
#include "data/special_split.h"
#include "data/tokenizer_json.h"
#include "data/word_split.h"

namespace cairn::data {
namespace {

// Applies the merges to one word at a time. Holds only scratch memory: one per call of encode.
class WordMerger {
 public:
  WordMerger(const Bpe& bpe, const MergeTable& table, std::span<const int32_t, 256> byte_ids)
      : bpe_(bpe), table_(table), byte_ids_(byte_ids) {}

  // Appends the ids of `word`: always the merge of lowest rank next, leftmost first.
  void merge(std::string_view word, std::vector<int32_t>& into) {
    CAIRN_CHECK(word.size() < std::numeric_limits<int32_t>::max(), "a word of {} bytes", word.size());
    const int32_t n = static_cast<int32_t>(word.size());
    symbols_.resize(n);
    for (int32_t i = 0; i < n; ++i) symbols_[i] = {byte_ids_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i + 1 < n; ++i) offer(i);
    while (!queue_.empty()) {
      const auto [rank, at] = queue_.top();
      queue_.pop();
      // Stale if the piece was swallowed or a neighbour changed since: ranks belong to one pair each.
      if (symbols_[at].id < 0 || symbols_[at].next < 0 || rank_at(at) != rank) continue;
      join(at, bpe_.merges[rank].result);
    }
    for (int32_t i = 0; i >= 0; i = symbols_[i].next) into.push_back(symbols_[i].id);
  }

 private:
  struct Symbol {
    int32_t id;  // -1: swallowed by its left neighbour
    int32_t previous;
    int32_t next;
  };
  using Candidate = std::pair<int32_t, int32_t>;  // rank, position

  int32_t rank_at(int32_t at) const { return table_.rank(symbols_[at].id, symbols_[symbols_[at].next].id); }

  void offer(int32_t at) {
    if (const int32_t rank = rank_at(at); rank >= 0) queue_.emplace(rank, at);
  }

  void join(int32_t at, int32_t result) {
    Symbol& left = symbols_[at];
    Symbol& right = symbols_[left.next];
    left.id = result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols_[left.next].previous = at;
      offer(at);
    }
    if (left.previous >= 0) offer(left.previous);
  }

  const Bpe& bpe_;
  const MergeTable& table_;
  std::span<const int32_t, 256> byte_ids_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

// Remembers the ids of words seen before; most of a text is words seen before. Keys point into the text being encoded.
class WordCache {
 public:
  // The ids of `word`, or nothing: then the caller makes them and hands them to keep().
  std::span<const int32_t> find(std::string_view word) {
    hash_ = std::hash<std::string_view>{}(word);
    for (size_t slot = hash_ & (kSlots - 1);; slot = (slot + 1) & (kSlots - 1)) {
      const Entry& entry = entries_[slot];
      if (entry.count == 0) {
        slot_ = slot;
        return {};
      }
      if (entry.hash == hash_ && entry.word == word) return std::span(ids_).subspan(entry.begin, entry.count);
    }
  }

  void keep(std::string_view word, std::span<const int32_t> ids) {
    if (used_ == kSlots / 2) return;  // full: words that come late are rare ones
    ++used_;
    entries_[slot_] = {word, hash_, static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(ids.size())};
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  static constexpr size_t kSlots = 1 << 15;
  struct Entry {
    std::string_view word;
    size_t hash = 0;
    uint32_t begin = 0;
    uint32_t count = 0;  // 0: free
  };
  std::vector<Entry> entries_ = std::vector<Entry>(kSlots);
  std::vector<int32_t> ids_;
  size_t used_ = 0;
  size_t hash_ = 0;  // of the word last looked for, and the free slot it would take
  size_t slot_ = 0;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(Bpe bpe) : bpe_(std::move(bpe)), table_(bpe_.merges) {
    byte_ids_.fill(-1);
    for (size_t id = 0; id < bpe_.pieces.size(); ++id) {
      const std::string& piece = bpe_.pieces[id];
      if (piece.size() == 1) byte_ids_[static_cast<uint8_t>(piece[0])] = static_cast<int32_t>(id);
    }
    for (const int32_t id : byte_ids_) CAIRN_CHECK(id >= 0, "a byte has no piece");
    for (const SpecialToken& token : bpe_.specials) {
      if (token.text == kEndOfText) end_of_text_ = token.id;
    }
    CAIRN_CHECK(end_of_text_ >= 0, "no special token {}", kEndOfText);
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3 + 8);
    WordMerger merger(bpe_, table_, byte_ids_);
    // A cache is 1.3 MB of zeros: not worth it for a prompt.
    std::optional<WordCache> cache;
    if (text.size() >= kCacheFromBytes) cache.emplace();
    const auto word_ids = [&](std::string_view word) {
      if (!cache || word.size() > kCachedWordBytes) return merger.merge(word, ids);
      const std::span<const int32_t> known = cache->find(word);
      if (!known.empty()) return void(ids.insert(ids.end(), known.begin(), known.end()));
      const size_t before = ids.size();
      merger.merge(word, ids);
      cache->keep(word, std::span(ids).subspan(before));
    };
    for_each_part(
        text, bpe_.specials,
        [&](std::string_view part) {
          if (bpe_.words)
            for_each_word(part, word_ids);
          else
            word_ids(part);
        },
        [&](int32_t id) { ids.push_back(id); });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size()) base::fail_input("token id {}: this tokenizer has ids 0 to {}", id, vocab_size() - 1);
      text += bpe_.pieces[id];
    }
    return text;
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(bpe_.pieces.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::string json() const override { return write_tokenizer_json(bpe_); }

 private:
  static constexpr size_t kCacheFromBytes = 16 << 10;
  static constexpr size_t kCachedWordBytes = 64;

  Bpe bpe_;
  MergeTable table_;
  std::array<int32_t, 256> byte_ids_;
  int32_t end_of_text_ = -1;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(Bpe bpe) { return std::make_unique<BpeTokenizer>(std::move(bpe)); }

}  // namespace cairn::data
