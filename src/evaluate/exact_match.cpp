#include "evaluate/exact_match.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "model/generate/generate.h"

namespace cairn::evaluate {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// Where the first of the stop texts begins; npos where there is none.
size_t stop_in(const std::string& text, const std::vector<std::string>& stops) {
  size_t at = std::string::npos;
  for (const std::string& stop : stops) at = std::min(at, text.find(stop));
  return at;
}

}  // namespace

std::string normalised(std::string_view text) {
  std::string plain;
  for (const char c : text)
    if (!std::ispunct(static_cast<unsigned char>(c))) plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string out;
  for (size_t at = 0; at < plain.size();) {
    const size_t begin = std::min(plain.find_first_not_of(" \t\r\n", at), plain.size());
    const size_t end = std::min(plain.find_first_of(" \t\r\n", begin), plain.size());
    const std::string word = plain.substr(begin, end - begin);
    at = end;
    if (word.empty() || word == "a" || word == "an" || word == "the") continue;
    if (!out.empty()) out += ' ';
    out += word;
  }
  return out;
}

AnswerSummary exact_match(const EvaluatedModel& evaluated, const std::vector<AnswerItem>& items, const AnswerOptions& options,
                          const std::function<void(const AnswerItem&, const AnswerResult&)>& on_item, const OnProgress& progress) {
  const model::GenerateOptions how{.tokens = options.tokens,
                                   .length_max = evaluated.length,
                                   .vocab = evaluated.tokenizer.vocab_size(),
                                   .sampling = {.temperature = 0},
                                   .stops = evaluated.stops};
  AnswerSummary summary;
  for (size_t first = 0; first < items.size(); first += static_cast<size_t>(options.batch)) {
    const size_t end = std::min(items.size(), first + static_cast<size_t>(options.batch));
    std::vector<model::GenerateRequest> requests;
    for (size_t i = first; i < end; ++i) {
      std::vector<int32_t> prompt = evaluated.prompt(options.prefix + items[i].prompt);
      if (prompt.empty() && evaluated.begin) prompt = {*evaluated.begin};
      if (prompt.empty())
        base::fail_input("line {} of the items: an empty prompt, and this model has no token that begins a text", items[i].line);
      if (static_cast<int64_t>(prompt.size()) >= evaluated.length)
        base::fail_input("line {} of the items: a prompt of {} tokens leaves no room for an answer: the model reads {}", items[i].line,
                         prompt.size(), evaluated.length);
      requests.push_back({std::move(prompt)});
    }
    std::vector<std::string> texts(requests.size());
    const auto on_token = [&](int64_t request, int32_t id) {
      std::string& text = texts[static_cast<size_t>(request)];
      text += evaluated.tokenizer.piece(id);
      return stop_in(text, options.stops) == std::string::npos;
    };
    const std::vector<model::GeneratedText> answers =
        model::generate(evaluated.model, evaluated.weights, evaluated.buffers, requests, how, on_token);
    for (size_t i = first; i < end; ++i) {
      std::string& text = texts[i - first];
      text.resize(std::min(text.size(), stop_in(text, options.stops)));
      AnswerResult result{.text = text, .ended = model::name(answers[i - first].finish_reason)};
      for (const std::string& answer : items[i].answers) {
        result.exact = result.exact || trimmed(text) == trimmed(answer);
        result.exact_norm = result.exact_norm || normalised(text) == normalised(answer);
      }
      summary.exact_match.add(result.exact);
      summary.exact_match_norm.add(result.exact_norm);
      if (on_item) on_item(items[i], result);
    }
    if (progress) progress(static_cast<int64_t>(end), static_cast<int64_t>(items.size()));
  }
  return summary;
}

}  // namespace cairn::evaluate
