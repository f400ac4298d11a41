#include <array>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "base/files.h"
#include "base/random.h"
#include "proofs/hdee_parts.h"

namespace cairn::study {
namespace {

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
std::string patterns(Dice dice, size_t bytes) {
  std::vector<std::string> words(4);
  for (std::string& word : words)
    for (size_t letters = 5 + dice.below(5); letters > 0; --letters) word += static_cast<char>('a' + dice.below(8));
  std::string text;
  while (text.size() < bytes) {
    const std::string& word = dice.pick(words);
    for (size_t times = 3 + dice.below(4); times > 0; --times) text += word + (times > 1 ? " " : "\n");
  }
  return text;
}

std::string sentences(Dice dice, size_t bytes) {
  static const std::array<std::string, 8> kNames{"Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal"};
  static const std::array<std::string, 6> kVerbs{"sees", "likes", "finds", "takes", "drops", "wants"};
  static const std::array<std::string, 6> kSpins{"red", "big", "old", "tiny", "wet", "soft"};
  static const std::array<std::string, 8> kThings{"hat", "cup", "dog", "ball", "tree", "boat", "fish", "drum"};
  static const std::array<std::string, 4> kPlaces{"at home", "in the park", "by the sea", "on a hill"};
  std::string text;
  while (text.size() < bytes)
    text +=
        fmt::format("{} {} a {} {} {}.\n", dice.pick(kNames), dice.pick(kVerbs), dice.pick(kSpins), dice.pick(kThings), dice.pick(kPlaces));
  return text;
}

// A chain of order 4: after each four letters one of two may come, nine times in ten the first. Half of the contexts of n letters go on as
// their last n - 1 letters do, so that there is something to learn at every order; else experts wait for a lucky moment to see any of it.
class Chain {
 public:
  Chain(Dice dice, size_t letters) : dice_(dice), letters_(letters) {}

  std::string text(size_t bytes) {
    constexpr size_t kColumns = 79;
    std::string before = "abcd", text;
    while (text.size() < bytes) {
      before = before.substr(1) + after(before)[dice_.below(10) == 0 ? 1 : 0];
      text += before.back();
      if (text.size() % (kColumns + 1) == kColumns) text += '\n';
    }
    return text;
  }

 private:
  using Pair = std::array<char, 2>;

  Pair after(const std::string& context) {
    if (const auto found = next_.find(context); found != next_.end()) return found->second;
    const Pair pair = context.size() > 1 && dice_.below(2) == 0 ? after(context.substr(1)) : fresh();
    return next_.emplace(context, pair).first->second;
  }
  Pair fresh() {
    const size_t first = dice_.below(letters_), second = (first + 1 + dice_.below(letters_ - 1)) % letters_;
    return {static_cast<char>('a' + first), static_cast<char>('a' + second)};
  }

  Dice dice_;
  size_t letters_;
  std::unordered_map<std::string, Pair> next_;
};

}  // namespace

void write_hdee_domains(const std::filesystem::path& folder, const ProofOptions& options, const DomainSizes& sizes) {
  const base::Random random = base::Random(options.seed).for_purpose("domains");
  const auto dice = [&](const char* name) { return Dice(random.for_name(name)); };
  base::make_folder(folder);
  base::write_atomically(folder / "easy.txt", patterns(dice("easy"), sizes.bytes));
  base::write_atomically(folder / "medium.txt", sentences(dice("medium"), sizes.bytes));
  base::write_atomically(folder / "hard.txt", options.data.empty() ? Chain(dice("hard"), sizes.letters).text(sizes.hard_bytes)
                                                                   : base::read_file(options.data, 1 << 30));
}

}  // namespace cairn::study
