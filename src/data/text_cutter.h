// Cuts a text into the words that merges work on, step by step, as a tokenizer's `cuts` say.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "data/regular_expression.h"
#include "data/word_split.h"

namespace cairn::data {

// A part of a text, and whether it is what a pattern looks for.
struct Span {
  size_t begin = 0, end = 0;
  bool match = false;
};

// Immutable: one may serve many threads.
class TextCutter {
 public:
  // Refuses an expression that does not compile, with `name`.
  TextCutter(std::vector<Cut> cuts, const std::string& name);

  // Calls visit(word) for each word in order. `first`: nothing of the text came before this part of it.
  template <typename Visit>
  void operator()(std::string_view text, bool first, Visit&& visit) const {
    cut(0, text, first, visit);
  }

  // The pattern, where it is all there is.
  std::optional<WordPattern> only_pattern() const;

 private:
  template <typename Visit>
  void cut(size_t step, std::string_view text, bool first, Visit& visit) const {
    if (text.empty()) return;
    if (step == cuts_.size()) return visit(text);
    const bool last = step + 1 == cuts_.size();
    const auto on = [&](std::string_view part) { last ? visit(part) : cut(step + 1, part, first && part.data() == text.data(), visit); };
    switch (cuts_[step].kind) {
      case Cut::Kind::gpt2:
        return for_each_word(WordPattern::gpt2, text, on);
      case Cut::Kind::llama3:
        return for_each_word(WordPattern::llama3, text, on);
      case Cut::Kind::qwen2:
        return for_each_word(WordPattern::qwen2, text, on);
      case Cut::Kind::prefix_space:
      case Cut::Kind::mark_spaces: {
        const std::string changed = prepared(cuts_[step], text, first);
        return last ? visit(std::string_view(changed)) : cut(step + 1, changed, first, visit);
      }
      default:
        for (const Span& span : spans(step, text))
          if (span.end > span.begin) on(text.substr(span.begin, span.end - span.begin));
    }
  }

  static std::string prepared(const Cut& cut, std::string_view text, bool first);
  std::vector<Span> spans(size_t step, std::string_view text) const;

  std::vector<Cut> cuts_;
  std::vector<std::unique_ptr<const RegularExpression>> expressions_;  // null where a step has none
};

// What remains of the spans that cover a text, after matches were kept as `keep` says.
std::vector<Span> kept(std::vector<Span> spans, Cut::Keep keep);

}  // namespace cairn::data
