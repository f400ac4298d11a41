#include "data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/check.h"

namespace cairn::data {
namespace {

// Longer words (a page without spaces) are split into pieces of this size, which keeps every merge cheap.
constexpr size_t kWordBytes = 256;
// The text that one thread counts at a time.
constexpr size_t kChunkBytes = 1 << 18;

struct Pair {
  int32_t left = 0;
  int32_t right = 0;
  bool operator==(const Pair&) const = default;
};

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return (static_cast<uint64_t>(static_cast<uint32_t>(pair.left)) << 32 | static_cast<uint32_t>(pair.right)) * 0x9e3779b97f4a7c15u >> 20;
  }
};

struct Word {
  std::vector<int32_t> ids;
  int64_t count = 0;
};

struct Occurrences {
  int64_t count = 0;
  std::vector<int32_t> words;  // where it was seen; may repeat, may be out of date
  int64_t queued = -1;         // the round in which it last grew
};

// Ordered by count, then by smaller ids.
struct Candidate {
  int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {
    return std::tuple(count, -pair.left, -pair.right) < std::tuple(other.count, -other.pair.left, -other.pair.right);
  }
};

using WordCounts = std::unordered_map<std::string_view, int64_t>;

void count_words(std::string_view text, WordPattern pattern, WordCounts& counts) {
  for_each_word(pattern, text, [&](std::string_view word) {
    for (; word.size() > kWordBytes; word.remove_prefix(kWordBytes)) ++counts[word.substr(0, kWordBytes)];
    ++counts[word];
  });
}

// The texts in pieces of about kChunkBytes, cut where words end.
std::vector<std::string_view> in_chunks(std::span<const std::string_view> texts, WordPattern pattern) {
  std::vector<std::string_view> chunks;
  for (std::string_view text : texts) {
    while (text.size() > kChunkBytes) {
      size_t at = kChunkBytes;
      while (at < text.size() && !is_word_boundary_of(pattern, text[at - 1], text[at])) ++at;
      chunks.push_back(text.substr(0, at));
      text.remove_prefix(at);
    }
    chunks.push_back(text);
  }
  return chunks;
}

std::vector<Word> count_words(std::span<const std::string_view> texts, WordPattern pattern, int threads) {
  const std::vector<std::string_view> chunks = in_chunks(texts, pattern);
  std::vector<WordCounts> parts(static_cast<size_t>(std::max(1, threads)));
  const auto count_part = [&](size_t part) {
    for (size_t i = part; i < chunks.size(); i += parts.size()) count_words(chunks[i], pattern, parts[part]);
  };
  {
    std::vector<std::jthread> workers;
    for (size_t part = 1; part < parts.size(); ++part) workers.emplace_back(count_part, part);
    count_part(0);
  }
  for (size_t part = 1; part < parts.size(); ++part)
    for (const auto& [word, count] : parts[part]) parts[0][word] += count;
  std::vector<Word> words;
  words.reserve(parts[0].size());
  for (const auto& [bytes, count] : parts[0]) {
    Word& word = words.emplace_back();
    word.count = count;
    for (const char c : bytes) word.ids.push_back(static_cast<uint8_t>(c));
  }
  return words;
}

// BPE training (Sennrich et al., arXiv:1508.07909) over distinct words with counts. Each round merges the most frequent pair (a, b) into a
// new piece ab and updates the counts of the pairs in the words that held it. A merge can increase only pairs that contain ab; those are
// pushed onto the queue again. All other counts can only fall, so an entry of the queue that is too high is corrected when it comes up
// (lazy deletion), and the top of the queue is the true maximum.
class BpeTrainer {
 public:
  explicit BpeTrainer(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t word = 0; word < words_.size(); ++word) {
      add_pairs(static_cast<int32_t>(word), +1, [](Pair) { return true; });
    }
    for (const auto& [pair, seen] : pairs_) queue_.push({seen.count, pair});
  }

  // The pair to merge next; a count below 2 means that none is left.
  Candidate best() {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      const int64_t now = pairs_[top.pair].count;
      if (now == top.count) return top;
      queue_.pop();
      if (now > 0) queue_.push({now, top.pair});
    }
    return {0, {}};
  }

  void merge(Pair pair, int32_t result) {
    const std::vector<int32_t> places = std::move(pairs_[pair].words);
    pairs_[pair].words.clear();
    fresh_.clear();
    ++round_;
    for (const int32_t word : places) {
      if (!contains(words_[word], pair)) continue;
      add_pairs(word, -1, [](Pair) { return false; });
      replace(words_[word], pair, result);
      add_pairs(word, +1, [&](Pair now) { return now.left == result || now.right == result; });
    }
    for (const Pair& now : fresh_) queue_.push({pairs_[now].count, now});
  }

 private:
  // Adds sign * count of the word to each of its pairs, and records the word with those pairs that `is_new`.
  template <typename IsNew>
  void add_pairs(int32_t index, int64_t sign, IsNew is_new) {
    const Word& word = words_[index];
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      const Pair pair{word.ids[i], word.ids[i + 1]};
      Occurrences& seen = pairs_[pair];
      seen.count += sign * word.count;
      if (!is_new(pair)) continue;
      if (!seen.words.empty() && seen.words.back() == index) continue;
      seen.words.push_back(index);
      if (seen.queued != round_) fresh_.push_back(pair);
      seen.queued = round_;
    }
  }

  static bool contains(const Word& word, Pair pair) {
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      if (word.ids[i] == pair.left && word.ids[i + 1] == pair.right) return true;
    }
    return false;
  }

  static void replace(Word& word, Pair pair, int32_t result) {
    size_t to = 0;
    for (size_t from = 0; from < word.ids.size(); ++to) {
      const bool here = from + 1 < word.ids.size() && word.ids[from] == pair.left && word.ids[from + 1] == pair.right;
      word.ids[to] = here ? result : word.ids[from];
      from += here ? 2 : 1;
    }
    word.ids.resize(to);
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> fresh_;  // pairs that grew in this round
  int64_t round_ = 0;
};

}  // namespace

Bpe train_bpe(std::span<const std::string_view> texts, const BpeTraining& training) {
  const auto specials = static_cast<int64_t>(training.specials.size());
  CAIRN_CHECK(training.vocab >= 256 + specials, "vocab = {}: 256 bytes and {} special tokens must fit", training.vocab, specials);
  Bpe bpe;
  const PreTokenizerStep::Kind kinds[] = {PreTokenizerStep::Kind::gpt2, PreTokenizerStep::Kind::llama3, PreTokenizerStep::Kind::qwen2};
  bpe.pre_tokenizers = {{kinds[static_cast<int>(training.pattern)]}};
  for (int byte = 0; byte < 256; ++byte) bpe.pieces.emplace_back(1, static_cast<char>(byte));
  std::unordered_map<std::string, int32_t> ids;  // two merges may spell one piece: it keeps one id
  BpeTrainer trainer(count_words(texts, training.pattern, training.threads));
  while (static_cast<int64_t>(bpe.pieces.size()) + specials < training.vocab) {
    const Candidate best = trainer.best();
    if (best.count < 2) break;
    std::string piece = bpe.pieces[best.pair.left] + bpe.pieces[best.pair.right];
    const auto [entry, is_new] = ids.emplace(piece, static_cast<int32_t>(bpe.pieces.size()));
    if (is_new) bpe.pieces.push_back(std::move(piece));
    bpe.merges.push_back({best.pair.left, best.pair.right, entry->second});
    trainer.merge(best.pair, entry->second);
  }
  for (const std::string& special : training.specials) {
    bpe.added.push_back({.id = static_cast<int32_t>(bpe.pieces.size()), .text = special});
    bpe.pieces.push_back(special);
  }
  return bpe;
}

}  // namespace cairn::data
