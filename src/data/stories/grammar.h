// A small template grammar: text with alternatives and named parts, expanded by random choices.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"

namespace cairn::data {

// Random choices: each call uses the next number of one keyed stream.
class Choices {
 public:
  explicit Choices(base::Random random) : random_(random) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(uint64_t{random_.bits32(drawn_++)} * n >> 32); }
  template <typename T>
  const T& pick(std::span<const T> from) {
    return from[below(static_cast<uint32_t>(from.size()))];
  }

 private:
  base::Random random_;
  uint64_t drawn_ = 0;
};

// Compiled templates. `[a|b|]` is one of its alternatives (which may be empty and nest), `{name}` is a slot that each expansion fills in,
// or another rule; other text stands for itself.
class Grammar {
 public:
  using Rule = std::pair<std::string_view, std::string_view>;  // name, template

  // Grammars are part of the program: an unknown name or unmatched brackets is a broken invariant.
  Grammar(std::span<const std::string_view> slots, std::span<const Rule> rules);

  // The number of a rule, for expand().
  int32_t rule(std::string_view name) const;

  // Appends an expansion of `rule`; `values[i]` fills slot i.
  void expand(int32_t rule, std::span<const std::string_view> values, Choices& choices, std::string& text) const;

 private:
  // A rule is a sequence of nodes. A choice has one sequence per part.
  struct Node {
    enum class Kind : uint8_t { literal, slot, rule, choice } kind;
    int32_t index;  // of the slot or rule; of the first sequence of a choice
    int32_t count;  // parts of a choice
    std::string_view literal;
  };
  using Sequence = std::vector<Node>;
  class Parser;

  void expand_sequence(const Sequence& sequence, std::span<const std::string_view> values, Choices& choices, std::string& text) const;

  std::vector<std::string_view> names_;
  std::vector<Sequence> sequences_;  // first those of the rules, in order
};

}  // namespace cairn::data
