// Splits a text into the words that merges work on, by the pre-tokenizer steps of a tokenizer.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/regular_expression.h"
#include "data/tokenizer/word_split.h"

namespace cairn::data {

// A part of a text, and whether it matches the pattern of a step.
struct MatchSpan {
  size_t begin = 0, end = 0;
  bool match = false;
};

// Immutable: one may serve many threads.
class PreTokenizer {
 public:
  // Refuses an expression that does not compile, with `name`.
  PreTokenizer(std::vector<PreTokenizerStep> pre_tokenizers, const std::string& name);

  // Calls visit(word) for each word in order. `first`: this part is the beginning of the text.
  template <typename Visit>
  void operator()(std::string_view text, bool first, Visit&& visit) const {
    split(0, text, first, visit);
  }

  // The word pattern, where it is the only step.
  std::optional<WordPattern> only_pattern() const;

 private:
  template <typename Visit>
  void split(size_t step, std::string_view text, bool first, Visit& visit) const {
    if (text.empty()) return;
    if (step == steps_.size()) return visit(text);
    const bool last = step + 1 == steps_.size();
    const auto on = [&](std::string_view part) { last ? visit(part) : split(step + 1, part, first && part.data() == text.data(), visit); };
    switch (steps_[step].kind) {
      case PreTokenizerStep::Kind::gpt2:
        return for_each_word(WordPattern::gpt2, text, on);
      case PreTokenizerStep::Kind::llama3:
        return for_each_word(WordPattern::llama3, text, on);
      case PreTokenizerStep::Kind::qwen2:
        return for_each_word(WordPattern::qwen2, text, on);
      case PreTokenizerStep::Kind::prefix_space:
      case PreTokenizerStep::Kind::metaspace: {
        const std::string changed = prepared(steps_[step], text, first);
        return last ? visit(std::string_view(changed)) : split(step + 1, changed, first, visit);
      }
      default:
        for (const MatchSpan& span : spans(step, text))
          if (span.end > span.begin) on(text.substr(span.begin, span.end - span.begin));
    }
  }

  static std::string prepared(const PreTokenizerStep& rule, std::string_view text, bool first);
  std::vector<MatchSpan> spans(size_t step, std::string_view text) const;

  std::vector<PreTokenizerStep> steps_;
  std::vector<std::unique_ptr<const RegularExpression>> expressions_;  // null where a step has none
};

// Turns the spans that cover a text into pieces: matches are isolated, removed or merged as `behavior` says.
std::vector<MatchSpan> apply_behavior(std::vector<MatchSpan> spans, PreTokenizerStep::Behavior behavior);

}  // namespace cairn::data
