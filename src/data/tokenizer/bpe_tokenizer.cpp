#include "data/tokenizer/bpe_tokenizer.h"

#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/byte_to_unicode.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/merge_table.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/word_cache.h"
#include "data/tokenizer/word_merger.h"

namespace cairn::data {
namespace {

// Scratch memory of one call of encode. Kept between calls, because the cache of words pays off over many texts.
struct Workspace {
  Workspace(const Bpe& bpe, const MergeTable& table) : merger(bpe, table) {}
  WordMerger merger;
  WordCache cache;
  std::string normalized;
};

AddedTokens tokens_where(const Bpe& bpe, bool normalized) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> texts;
  for (const AddedToken& token : bpe.added) {
    if (token.normalized != normalized) continue;
    std::string scratch;
    texts.emplace_back(normalized ? apply_normalizers(token.text, bpe.normalizers, scratch) : token.text);
    tokens.push_back(token);
  }
  return AddedTokens(std::move(tokens), texts);
}

// Whether no piece reaches across the space mark, so that a text may be split before each mark without changing its ids.
bool ends_at_marks(const Bpe& bpe) {
  if (bpe.bytes || bpe.whole_words) return false;
  bool has_mark = false;
  for (const std::string& piece : bpe.pieces) has_mark = has_mark || piece == kSpaceMark;
  for (const Merge& merge : bpe.merges) {
    const std::string& text = bpe.pieces[merge.result];
    for (size_t at = text.find(kSpaceMark); at != std::string::npos; at = text.find(kSpaceMark, at + 1))
      if (at > 0 && (at < kSpaceMark.size() || text.compare(at - kSpaceMark.size(), kSpaceMark.size(), kSpaceMark) != 0)) return false;
  }
  return has_mark;
}

class BpeTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;

  BpeTokenizer(Bpe bpe, std::string json, const std::string& name)
      : bpe_(std::move(bpe)),
        json_(std::move(json)),
        table_(bpe_.merges),
        pre_tokenizer_(bpe_.pre_tokenizers, name),
        raw_tokens_(tokens_where(bpe_, false)),
        normalized_tokens_(tokens_where(bpe_, true)),
        texts_(bpe_),
        split_at_marks_(ends_at_marks(bpe_)) {
    std::vector<bool> only_added(bpe_.pieces.size());
    special_.resize(bpe_.pieces.size());
    for (const AddedToken& token : bpe_.added) {
      added_ids_.emplace(token.text, token.id);
      special_[token.id] = token.special;
      only_added[token.id] = !token.in_vocab;
    }
    for (size_t id = 0; id < bpe_.pieces.size(); ++id)
      if (!only_added[id]) ids_.emplace(bpe_.pieces[id], static_cast<int32_t>(id));
    find_bytes();
    split_pattern_ = pre_tokenizer_.only_pattern();
    for (const NormalizerStep& step : bpe_.normalizers)
      if (step.kind != NormalizerStep::Kind::nfc) split_pattern_.reset();
    for (const AddedToken& token : bpe_.added)
      if (token.left_strip || token.right_strip || token.single_word || token.text.find_first_of(" \n") != std::string::npos)
        split_pattern_.reset();
  }

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& into) const override {
    std::unique_ptr<Workspace> work = borrow();
    if (options.add_special) into.insert(into.end(), bpe_.begin.begin(), bpe_.begin.end());
    const auto take = [&](const AddedToken& token) { into.push_back(token.id); };
    for_each_part(
        text, raw_tokens_, options.parse_special,
        [&](std::string_view part, size_t begin) {
          const std::string_view now = apply_normalizers(part, bpe_.normalizers, work->normalized);
          for_each_part(
              now, normalized_tokens_, options.parse_special,
              [&](std::string_view inner, size_t inner_begin) {
                pre_tokenizer_(inner, begin == 0 && inner_begin == 0, [&](std::string_view word) { add_words(word, *work, into); });
              },
              take);
        },
        take);
    if (options.add_special) into.insert(into.end(), bpe_.end.begin(), bpe_.end.end());
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(work));
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids) check(id);
    return texts_.join(ids);
  }

  std::string piece(int32_t id) const override {
    check(id);
    return texts_[id];
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(bpe_.pieces.size()); }
  bool is_special(int32_t id) const override { return id >= 0 && id < vocab_size() && special_[id]; }
  bool is_split_point(char before, char after) const override {
    return split_pattern_ && is_word_boundary_of(*split_pattern_, before, after);
  }
  std::vector<int32_t> begin_ids() const override { return bpe_.begin; }
  std::string json() const override { return json_.empty() ? write_tokenizer_json(bpe_) : json_; }

  std::optional<int32_t> id_of(std::string_view token) const override {
    if (const auto added = added_ids_.find(std::string(token)); added != added_ids_.end()) return added->second;
    const std::optional<std::string> piece = bpe_.bytes ? unicode_to_bytes(token) : std::string(token);
    const auto found = piece ? ids_.find(*piece) : ids_.end();
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void check(int32_t id) const {
    if (id < 0 || id >= vocab_size()) base::fail_input("token id {}: this tokenizer has ids 0 to {}", id, vocab_size() - 1);
  }

  void find_bytes() {
    byte_ids_.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(bpe_.bytes ? std::string(1, static_cast<char>(byte)) : byte_piece(byte));
      if (found != ids_.end() && (bpe_.bytes || bpe_.byte_fallback)) byte_ids_[byte] = found->second;
      CAIRN_CHECK(byte_ids_[byte] >= 0 || (!bpe_.bytes && !bpe_.byte_fallback), "byte {} has no piece", byte);
    }
  }

  std::unique_ptr<Workspace> borrow() const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Workspace> work = std::move(idle_.back());
        idle_.pop_back();
        return work;
      }
    }
    return std::make_unique<Workspace>(bpe_, table_);
  }

  // Splits at space marks where that does not change the ids, so that the words can be cached.
  void add_words(std::string_view word, Workspace& work, std::vector<int32_t>& into) const {
    if (!split_at_marks_) return add_word(word, work, into);
    size_t begin = 0;
    for (size_t at = word.find(kSpaceMark, 1); at != std::string_view::npos; at = word.find(kSpaceMark, at + kSpaceMark.size())) {
      if (at >= begin + kSpaceMark.size() && word.substr(at - kSpaceMark.size(), kSpaceMark.size()) == kSpaceMark) continue;
      add_word(word.substr(begin, at - begin), work, into);
      begin = at;
    }
    add_word(word.substr(begin), work, into);
  }

  void add_word(std::string_view word, Workspace& work, std::vector<int32_t>& into) const {
    if (word.size() > WordCache::kWordBytes) return make_ids(word, work, into);
    WordCache::Entry& entry = work.cache.find(word);
    if (entry.count) return void(into.insert(into.end(), entry.ids.data(), entry.ids.data() + entry.count));
    const size_t before = into.size();
    make_ids(word, work, into);
    work.cache.keep(entry, word, std::span(into).subspan(before));
  }

  void make_ids(std::string_view word, Workspace& work, std::vector<int32_t>& into) const {
    if (bpe_.whole_words) {
      if (const auto found = ids_.find(std::string(word)); found != ids_.end()) return into.push_back(found->second);
    }
    std::vector<int32_t>& start = work.merger.start();
    if (bpe_.bytes)
      for (const char c : word) start.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    else
      start_with_characters(word, start);
    work.merger.merge(into);
  }

  void start_with_characters(std::string_view word, std::vector<int32_t>& start) const {
    bool unknown = false;  // the last one was
    for (size_t at = 0; at < word.size();) {
      const Character c = character_at(word, at);
      const auto found = ids_.find(std::string(word.substr(at, c.bytes)));
      const bool known = found != ids_.end() && c.code != kNoCharacter;
      if (known) {
        start.push_back(found->second);
      } else if (bpe_.byte_fallback) {
        for (size_t i = 0; i < c.bytes; ++i) start.push_back(byte_ids_[static_cast<uint8_t>(word[at + i])]);
      } else if (bpe_.unknown >= 0 && !(unknown && bpe_.fuse_unknown)) {
        start.push_back(bpe_.unknown);
      }
      unknown = !known;
      at += c.bytes;
    }
  }

  Bpe bpe_;
  std::string json_;
  MergeTable table_;
  PreTokenizer pre_tokenizer_;
  AddedTokens raw_tokens_, normalized_tokens_;
  PieceTexts texts_;
  bool split_at_marks_;
  std::unordered_map<std::string, int32_t> ids_;  // of pieces that merges can produce
  std::unordered_map<std::string, int32_t> added_ids_;
  std::vector<bool> special_;
  std::array<int32_t, 256> byte_ids_;
  std::optional<WordPattern>
      split_pattern_;  // the pattern whose word boundaries are also boundaries of ids; none: the text cannot be split
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(Bpe bpe, std::string json, const std::string& name) {
  return std::make_unique<BpeTokenizer>(std::move(bpe), std::move(json), name);
}

}  // namespace cairn::data
