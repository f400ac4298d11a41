// Caches the ids of words: most words of a text have been seen before.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace cairn::data {

// A hash table of short words with bounded memory: when it is full, all entries are dropped. One per thread.
class WordCache {
 public:
  static constexpr size_t kWordBytes = 23;
  static constexpr size_t kIds = 9;  // a word with more ids is not cached

  // One word, in one cache line of the processor.
  struct alignas(64) Entry {
    std::array<uint64_t, 3> word{};  // its bytes, and their number in the last one
    uint8_t count = 0;               // 0: free
    std::array<int32_t, kIds> ids{};
  };

  // The entry of `word` (1 to kWordBytes bytes), or a free one, which the caller may fill by keep().
  Entry& find(std::string_view word) {
    const std::array<uint64_t, 3> key = key_of(word);
    uint64_t hash = (key[0] ^ (key[1] * 0x9e3779b97f4a7c15u) ^ (key[2] * 0xc2b2ae3d27d4eb4fu)) * 0xd6e8feb86659fd93u;
    hash ^= hash >> 32;
    for (size_t slot = hash & (kSlots - 1);; slot = (slot + 1) & (kSlots - 1)) {
      Entry& entry = entries_[slot];
      if (entry.count == 0 || entry.word == key) return entry;
    }
  }

  // Fills the free entry that find() returned for `word`.
  void keep(Entry& entry, std::string_view word, std::span<const int32_t> ids) {
    if (ids.size() > kIds || ids.empty()) return;
    if (used_ == kUsedMax) {
      entries_.assign(kSlots, Entry());
      used_ = 0;
      return;  // `entry` is free, and may not be the word's place any more
    }
    ++used_;
    entry.word = key_of(word);
    entry.count = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kSlots = 1 << 15;
  static constexpr size_t kUsedMax = kSlots / 2;

  static std::array<uint64_t, 3> key_of(std::string_view word) {
    std::array<uint64_t, 3> key{};
    std::memcpy(key.data(), word.data(), word.size());
    key[2] |= static_cast<uint64_t>(word.size()) << 56;
    return key;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kSlots);
  size_t used_ = 0;
};

}  // namespace cairn::data
