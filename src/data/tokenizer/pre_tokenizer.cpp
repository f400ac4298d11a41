#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "data/tokenizer/characters.h"

namespace cairn::data {
namespace {

// Matches and the text between them, in order.
template <typename Next>
std::vector<MatchSpan> cover(std::string_view text, Next next) {
  std::vector<MatchSpan> spans;
  size_t covered = 0;
  for (size_t from = 0; from <= text.size();) {
    const std::optional<RegularExpression::Match> found = next(from);
    if (!found) break;
    if (found->begin > covered) spans.push_back({covered, found->begin, false});
    if (found->end > found->begin) {
      spans.push_back({found->begin, found->end, true});
      covered = found->end;
    } else if (found->begin > covered) {
      covered = found->begin;
    }
    const bool empty = found->end == found->begin;
    from = found->end;
    if (empty) from += from < text.size() ? character_at(text, from).bytes : 1;
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), false});
  return spans;
}

std::vector<MatchSpan> cover_numbers(std::string_view text) {
  std::vector<MatchSpan> spans;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const bool number = c.kinds & Kind::number;
    if (!number && !spans.empty() && !spans.back().match)
      spans.back().end += c.bytes;
    else
      spans.push_back({at, at + c.bytes, number});
    at += c.bytes;
  }
  return spans;
}

void merge_with_neighbour(std::vector<MatchSpan>& spans, bool previous) {
  if (!previous) std::reverse(spans.begin(), spans.end());
  std::vector<MatchSpan> out;
  bool after_match = false;
  for (const MatchSpan& span : spans) {
    if (span.match && !after_match && !out.empty()) {
      out.back().begin = std::min(out.back().begin, span.begin);
      out.back().end = std::max(out.back().end, span.end);
    } else {
      out.push_back(span);
    }
    after_match = span.match;
  }
  if (!previous) std::reverse(out.begin(), out.end());
  spans = std::move(out);
}

}  // namespace

std::vector<MatchSpan> apply_behavior(std::vector<MatchSpan> spans, PreTokenizerStep::Behavior behavior) {
  switch (behavior) {
    case PreTokenizerStep::Behavior::isolated:
      break;
    case PreTokenizerStep::Behavior::removed:
      std::erase_if(spans, [](const MatchSpan& span) { return span.match; });
      break;
    case PreTokenizerStep::Behavior::merged_with_previous:
    case PreTokenizerStep::Behavior::merged_with_next:
      merge_with_neighbour(spans, behavior == PreTokenizerStep::Behavior::merged_with_previous);
      break;
    case PreTokenizerStep::Behavior::contiguous: {
      std::vector<MatchSpan> out;
      for (const MatchSpan& span : spans) {
        if (!out.empty() && out.back().match == span.match)
          out.back().end = span.end;
        else
          out.push_back(span);
      }
      return out;
    }
  }
  return spans;
}

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> pre_tokenizers, const std::string& name) : steps_(std::move(pre_tokenizers)) {
  for (const PreTokenizerStep& rule : steps_)
    expressions_.push_back(rule.kind == PreTokenizerStep::Kind::expression ? std::make_unique<RegularExpression>(rule.text, name)
                                                                           : nullptr);
}

std::optional<WordPattern> PreTokenizer::only_pattern() const {
  if (steps_.size() != 1) return std::nullopt;
  switch (steps_[0].kind) {
    case PreTokenizerStep::Kind::gpt2:
      return WordPattern::gpt2;
    case PreTokenizerStep::Kind::llama3:
      return WordPattern::llama3;
    case PreTokenizerStep::Kind::qwen2:
      return WordPattern::qwen2;
    default:
      return std::nullopt;
  }
}

std::string PreTokenizer::prepared(const PreTokenizerStep& rule, std::string_view text, bool first) {
  std::string out;
  if (rule.kind == PreTokenizerStep::Kind::prefix_space) {
    if (text[0] != ' ') out = ' ';
    return out += text;
  }
  out.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ')
      out += rule.text;
    else
      out += c;
  }
  const bool wanted = rule.prefix == PreTokenizerStep::Prefix::always || (rule.prefix == PreTokenizerStep::Prefix::first && first);
  if (wanted && !out.starts_with(rule.text)) out.insert(0, rule.text);
  return out;
}

std::vector<MatchSpan> PreTokenizer::spans(size_t step, std::string_view text) const {
  const PreTokenizerStep& rule = steps_[step];
  std::vector<MatchSpan> all;
  PreTokenizerStep::Behavior behavior = rule.behavior;
  if (rule.kind == PreTokenizerStep::Kind::expression) {
    all = cover(text, [&](size_t from) { return expressions_[step]->find(text, from); });
  } else if (rule.kind == PreTokenizerStep::Kind::literal) {
    all = cover(text, [&](size_t from) -> std::optional<RegularExpression::Match> {
      const size_t at = rule.text.empty() ? std::string_view::npos : text.find(rule.text, from);
      if (at == std::string_view::npos) return std::nullopt;
      return RegularExpression::Match{at, at + rule.text.size()};
    });
  } else {
    all = cover_numbers(text);
    behavior = rule.kind == PreTokenizerStep::Kind::digits ? PreTokenizerStep::Behavior::contiguous : PreTokenizerStep::Behavior::isolated;
  }
  if (rule.invert)
    for (MatchSpan& span : all) span.match = !span.match;
  return apply_behavior(std::move(all), behavior);
}

}  // namespace cairn::data
