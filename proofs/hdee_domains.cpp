#include <array>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "base/files.h"
#include "base/random.h"
#include "proofs/hdee_parts.h"

namespace cairn::study {
namespace {

constexpr size_t kBytes = 400'000, kHardBytes = 1'000'000;

// Numbers one after the other.
class Dice {
 public:
  explicit Dice(base::Random random) : random_(random) {}
  size_t below(size_t n) { return static_cast<size_t>(random_.below(next_++, n)); }
  template <typename List>
  const auto& pick(const List& list) {
    return list[below(list.size())];
  }

 private:
  base::Random random_;
  uint64_t next_ = 0;
};

// A few words, each said several times over.
std::string patterns(Dice dice) {
  std::vector<std::string> words(4);
  for (std::string& word : words)
    for (size_t letters = 5 + dice.below(5); letters > 0; --letters) word += static_cast<char>('a' + dice.below(8));
  std::string text;
  while (text.size() < kBytes) {
    const std::string& word = dice.pick(words);
    for (size_t times = 3 + dice.below(4); times > 0; --times) text += word + (times > 1 ? " " : "\n");
  }
  return text;
}

std::string sentences(Dice dice) {
  static const std::array<std::string, 8> kNames{"Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal"};
  static const std::array<std::string, 6> kVerbs{"sees", "likes", "finds", "takes", "drops", "wants"};
  static const std::array<std::string, 6> kLooks{"red", "big", "old", "tiny", "wet", "soft"};
  static const std::array<std::string, 8> kThings{"hat", "cup", "dog", "ball", "tree", "boat", "fish", "drum"};
  static const std::array<std::string, 4> kPlaces{"at home", "in the park", "by the sea", "on a hill"};
  std::string text;
  while (text.size() < kBytes)
    text +=
        fmt::format("{} {} a {} {} {}.\n", dice.pick(kNames), dice.pick(kVerbs), dice.pick(kLooks), dice.pick(kThings), dice.pick(kPlaces));
  return text;
}

// Five letters; after each four of them one of two may come, nine times in ten the first.
std::string chain(Dice dice) {
  constexpr size_t kLetters = 5, kOrder = 4, kColumns = 79;
  std::map<std::string, std::array<char, 2>> next;
  std::string letters = "abcd", text;
  while (text.size() < kHardBytes) {
    const std::string before = letters.substr(letters.size() - kOrder);
    auto found = next.find(before);
    if (found == next.end()) {
      const size_t first = dice.below(kLetters), second = (first + 1 + dice.below(kLetters - 1)) % kLetters;
      found = next.emplace(before, std::array{static_cast<char>('a' + first), static_cast<char>('a' + second)}).first;
    }
    letters += found->second[dice.below(10) == 0 ? 1 : 0];
    text += letters.back();
    if (text.size() % (kColumns + 1) == kColumns) text += '\n';
    if (letters.size() > 4096) letters.erase(0, letters.size() - kOrder);
  }
  return text;
}

}  // namespace

void write_hdee_domains(const std::filesystem::path& folder, const ProofOptions& options) {
  const base::Random random = base::Random(options.seed).for_purpose("domains");
  const auto dice = [&](const char* name) { return Dice(random.for_name(name)); };
  base::make_folder(folder);
  base::write_atomically(folder / "easy.txt", patterns(dice("easy")));
  base::write_atomically(folder / "medium.txt", sentences(dice("medium")));
  base::write_atomically(folder / "hard.txt", options.data.empty() ? chain(dice("hard")) : base::read_file(options.data, 1 << 30));
}

}  // namespace cairn::study
