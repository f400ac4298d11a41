#include "data/stories/grammar.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::data {

class Grammar::Parser {
 public:
  Parser(Grammar& grammar, std::span<const std::string_view> slots, std::string_view source)
      : grammar_(grammar), slots_(slots), source_(source), rest_(source) {}

  Sequence whole() {
    Sequence sequence = parse();
    CAIRN_CHECK(rest_.empty(), "unmatched \"{}\" in: {}", rest_.substr(0, 1), source_);
    return sequence;
  }

 private:
  // Up to the end or to a `|` or `]` that is not ours.
  Sequence parse() {
    Sequence sequence;
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ']') {
      if (rest_[0] == '[') {
        sequence.push_back(choice());
      } else if (rest_[0] == '{') {
        sequence.push_back(named());
      } else {
        const size_t length = std::min(rest_.find_first_of("[]|{"), rest_.size());
        sequence.push_back({Node::Kind::literal, 0, 0, rest_.substr(0, length)});
        rest_.remove_prefix(length);
      }
    }
    return sequence;
  }

  Node choice() {
    std::vector<Sequence> parts;
    do {
      rest_.remove_prefix(1);
      parts.push_back(parse());
    } while (!rest_.empty() && rest_[0] == '|');
    CAIRN_CHECK(!rest_.empty(), "a \"[\" is not closed in: {}", source_);
    rest_.remove_prefix(1);
    const auto first = static_cast<int32_t>(grammar_.sequences_.size());
    const auto count = static_cast<int32_t>(parts.size());
    for (Sequence& part : parts) grammar_.sequences_.push_back(std::move(part));
    return {Node::Kind::choice, first, count, {}};
  }

  Node named() {
    const size_t end = rest_.find('}');
    CAIRN_CHECK(end != std::string_view::npos, "a \"{{\" is not closed in: {}", source_);
    const std::string_view name = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    const auto slot = std::find(slots_.begin(), slots_.end(), name);
    if (slot != slots_.end()) return {Node::Kind::slot, static_cast<int32_t>(slot - slots_.begin()), 0, {}};
    return {Node::Kind::rule, grammar_.rule(name), 0, {}};
  }

  Grammar& grammar_;
  std::span<const std::string_view> slots_;
  std::string_view source_;
  std::string_view rest_;
};

Grammar::Grammar(std::span<const std::string_view> slots, std::span<const Rule> rules) {
  for (const Rule& rule : rules) names_.push_back(rule.first);
  sequences_.resize(rules.size());
  for (size_t i = 0; i < rules.size(); ++i) {
    Sequence sequence = Parser(*this, slots, rules[i].second).whole();
    sequences_[i] = std::move(sequence);
  }
}

int32_t Grammar::rule(std::string_view name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  CAIRN_CHECK(at != names_.end(), "no slot or rule is called \"{}\"", name);
  return static_cast<int32_t>(at - names_.begin());
}

void Grammar::expand(int32_t rule, std::span<const std::string_view> values, Choices& choices, std::string& text) const {
  expand_sequence(sequences_[rule], values, choices, text);
}

void Grammar::expand_sequence(const Sequence& sequence, std::span<const std::string_view> values, Choices& choices,
                              std::string& text) const {
  for (const Node& node : sequence) {
    switch (node.kind) {
      case Node::Kind::literal:
        text += node.literal;
        break;
      case Node::Kind::slot:
        text += values[node.index];
        break;
      case Node::Kind::rule:
        expand_sequence(sequences_[node.index], values, choices, text);
        break;
      case Node::Kind::choice:
        expand_sequence(sequences_[node.index + choices.below(node.count)], values, choices, text);
        break;
    }
  }
}

}  // namespace cairn::data
