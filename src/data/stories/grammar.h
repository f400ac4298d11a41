// A tiny template language: text with choices and named parts, expanded by random numbers.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"

namespace cairn::data {

// Random choices in order: the next number of one keyed stream with each call.
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

// Templates compiled once. In a template `[a|b|]` is one of its parts (any may be empty, and they nest), `{name}` is a slot that
// each expansion fills in, or another rule; everything else stands for itself.
class Grammar {
 public:
  using Rule = std::pair<std::string_view, std::string_view>;  // name, template

  // A name that is neither slot nor rule, or brackets that do not match, break an invariant: grammars are part of the program.
  Grammar(std::span<const std::string_view> slots, std::span<const Rule> rules);

  // The number by which expand() knows a rule.
  int32_t rule(std::string_view name) const;

  // Appends an expansion of `rule`; `values[i]` is what slot i stands for.
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
  std::vector<Sequence> sequences_;  // those of the rules first, in their order
};

}  // namespace cairn::data
