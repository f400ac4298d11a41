#include "evaluate/multiple_choice.h"

#include <algorithm>

#include "base/check.h"
#include "evaluate/token_losses.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kBatchesWaiting = 16;  // items of this many batches are collected, so that sequences of similar length share a batch

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

template <typename Score>
int64_t best(const std::vector<ChoiceScore>& scores, const Score& score) {
  const auto found =
      std::max_element(scores.begin(), scores.end(), [&](const ChoiceScore& a, const ChoiceScore& b) { return score(a) < score(b); });
  return found - scores.begin();
}

// Truncates a sequence from the front to the context length. Returns whether it had to.
bool cut_to_fit(ChoiceText& text, int64_t length, const ChoiceItem& item) {
  const int64_t over = static_cast<int64_t>(text.tokens.size()) - (length + 1);
  if (over <= 0) return false;
  if (over >= text.first)
    base::fail_input("line {} of the items: a choice of {} tokens, and the model reads {}", item.line,
                     static_cast<int64_t>(text.tokens.size()) - text.first, length);
  text.tokens.erase(text.tokens.begin(), text.tokens.begin() + over);
  text.first -= over;
  return true;
}

}  // namespace

ChoiceText choice_text(const EvaluatedModel& evaluated, const std::string& context, const std::string& choice) {
  size_t end = context.size();
  while (end > 0 && is_space(context[end - 1])) --end;
  const std::string kept = context.substr(0, end);
  std::string rest = context.substr(end);
  if (rest.empty() && !context.empty() && !is_space(choice[0])) rest.assign(1, ' ');
  rest += choice;
  ChoiceText text;
  std::vector<int32_t> alone = evaluated.prompt(kept);
  text.tokens = evaluated.prompt(kept + rest);
  if (alone.empty() && evaluated.begin) {
    alone = {*evaluated.begin};
    text.tokens.insert(text.tokens.begin(), *evaluated.begin);
  }
  // A token that spans context and choice belongs to the choice.
  const auto border = std::min(alone.size(), text.tokens.size());
  text.first = std::mismatch(alone.begin(), alone.begin() + static_cast<std::ptrdiff_t>(border), text.tokens.begin()).first - alone.begin();
  text.first = std::min<int64_t>(text.first, static_cast<int64_t>(text.tokens.size()) - 1);
  text.first = std::max<int64_t>(text.first, 1);
  return text;
}

ChoiceSummary multiple_choice(const EvaluatedModel& evaluated, const std::vector<ChoiceItem>& items, const ChoiceOptions& options,
                              const std::function<void(const ChoiceItem&, const ChoiceResult&)>& on_item, const OnProgress& progress) {
  ChoiceSummary summary;
  for (size_t first = 0, end = 0; first < items.size(); first = end) {
    std::vector<ScoredTokens> rows;
    std::vector<bool> cut;
    for (end = first; end < items.size() && static_cast<int64_t>(rows.size()) < kBatchesWaiting * options.batch; ++end) {
      cut.push_back(false);
      for (const std::string& choice : items[end].choices) {
        ChoiceText text = choice_text(evaluated, options.prefix + items[end].context, choice);
        if (text.tokens.size() < 2)
          base::fail_input("line {} of the items: a choice without a context, and this model has no token that begins a text",
                           items[end].line);
        cut.back() = cut_to_fit(text, evaluated.length, items[end]) || cut.back();
        rows.push_back({std::move(text.tokens), text.first});
      }
    }
    const std::vector<std::vector<float>> losses = token_losses(evaluated, rows, options.batch, [&](int64_t done, int64_t of) {
      const auto before = static_cast<int64_t>(first), now = static_cast<int64_t>(end - first);
      if (progress) progress(before + now * done / of, static_cast<int64_t>(items.size()));
    });
    size_t next = 0;
    for (size_t i = first; i < end; ++i) {
      ChoiceResult result{.scores = {}, .cut = cut[i - first]};
      for (const std::string& choice : items[i].choices) {
        ChoiceScore score{.tokens = static_cast<int64_t>(losses[next].size()), .bytes = static_cast<int64_t>(choice.size())};
        for (const float loss : losses[next]) score.log_likelihood -= loss;
        result.scores.push_back(score);
        ++next;
      }
      result.picked = best(result.scores, [](const ChoiceScore& s) { return s.log_likelihood; });
      result.picked_norm = best(result.scores, [](const ChoiceScore& s) { return s.log_likelihood / static_cast<double>(s.bytes); });
      result.picked_token = best(result.scores, [](const ChoiceScore& s) { return s.log_likelihood / static_cast<double>(s.tokens); });
      summary.acc.add(result.picked == items[i].gold);
      summary.acc_norm.add(result.picked_norm == items[i].gold);
      summary.acc_token.add(result.picked_token == items[i].gold);
      summary.cut += result.cut ? 1 : 0;
      if (on_item) on_item(items[i], result);
    }
  }
  return summary;
}

}  // namespace cairn::evaluate
