// `cairn generate`: continues prompts with a trained model.
#include "model/generate/generate.h"

#include <cstdio>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/text/language_model.h"
#include "cli/text/streaming_text.h"

namespace cairn::cli {
namespace {

constexpr int64_t kTokenBytesMax = 1024;  // no token stands for more
constexpr int64_t kPromptBytesMax = 16 << 20;

struct Prompt {
  std::string text;  // of --ids: what they stand for
  std::vector<int32_t> ids;
};

void refuse_long(const LanguageModel& model, const std::string& option, size_t tokens) {
  if (static_cast<int64_t>(tokens) >= model.shape.length)
    base::fail_input("{}: {} tokens, and the model reads at most {}, its answer included", option, tokens, model.shape.length);
}

Prompt prompt_of_ids(const LanguageModel& model, const std::vector<int64_t>& ids) {
  Prompt prompt;
  for (int64_t id : ids) {
    if (id < 0 || id >= model.shape.vocab) base::fail_input("--ids: {} is not in the vocabulary of {}", id, model.shape.vocab);
    prompt.ids.push_back(static_cast<int32_t>(id));
  }
  refuse_long(model, "--ids", prompt.ids.size());
  if (model.tokenizer) prompt.text = model.tokenizer->decode(prompt.ids);
  return prompt;
}

// One prompt to a line; the last line may lack its end.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

std::vector<Prompt> prompts_of(const LanguageModel& model, const GenerateArguments& a) {
  if (a.prompt_given + !a.ids.empty() + !a.prompt_file.empty() > 1) base::fail_input("give one of --prompt, --ids and --prompt-file");
  if (!a.ids.empty()) return {prompt_of_ids(model, a.ids)};
  std::vector<Prompt> prompts;
  const auto add = [&](const std::string& text, const std::string& option) {
    if (static_cast<int64_t>(text.size()) / kTokenBytesMax > model.shape.length)
      base::fail_input("{}: {} bytes are more than the {} tokens that the model reads at most, its answer included", option, text.size(),
                       model.shape.length);
    prompts.push_back({text, model.prompt_ids(text, option)});
    refuse_long(model, option, prompts.back().ids.size());
  };
  if (a.prompt_file.empty()) {
    add(a.prompt, "--prompt");
    return prompts;
  }
  const std::vector<std::string> lines = lines_of(base::read_file(a.prompt_file, kPromptBytesMax));
  for (size_t i = 0; i < lines.size(); ++i) add(lines[i], fmt::format("{}:{}", a.prompt_file, i + 1));
  if (prompts.empty()) base::fail_input("--prompt-file {}: no line in it", a.prompt_file);
  return prompts;
}

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

base::OrderedJson json_of(const Prompt& prompt, int64_t sample, const model::GeneratedText& answer, const std::string* text) {
  return {{"prompt", prompt.text},
          {"sample", sample},
          {"prompt_ids", prompt.ids},
          {"ids", answer.ids},
          {"text", text ? base::OrderedJson(*text) : base::OrderedJson(nullptr)},
          {"log_probabilities", answer.log_probabilities},
          {"stopped", model::name(answer.finish_reason)}};
}

}  // namespace

int generate_command(const GenerateArguments& a) {
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.level = base::Level::warn, .terminal = terminal, .file = {}});
  model::GenerateOptions options = a.options;
  if (a.greedy) options.sampling.temperature = 0;
  check(options.sampling);
  for (const std::string& stop : a.stops)
    if (stop.empty()) base::fail_input("--stop: an empty text is everywhere; give one that is not");
  at::set_num_threads(processors());
  LanguageModel model = open_language_model(a.folder, log, a.on, a.domain);
  if (!a.stops.empty()) model.require_tokenizer("--stop");
  const std::vector<Prompt> prompts = prompts_of(model, a);
  int64_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, static_cast<int64_t>(prompt.ids.size()));
  model.prepare_for_length(longest + options.tokens);
  options.length_max = model.shape.length;
  if (model.tokenizer) options.vocab = model.tokenizer->vocab_size();
  if (!a.ignore_end) options.stops = model.stops;

  const base::Random random = base::Random(static_cast<uint64_t>(a.seed)).for_purpose("generate");
  std::vector<model::GenerateRequest> requests;
  for (const Prompt& prompt : prompts)
    for (int64_t sample = 0; sample < a.samples; ++sample)
      requests.push_back({prompt.ids, random.for_index(static_cast<uint64_t>(sample))});
  std::vector<StreamingText> texts(requests.size(), StreamingText(a.stops));
  const bool alone = requests.size() == 1 && !a.json && model.tokenizer;
  if (alone) put(base::printable(prompts[0].text));
  const base::RealClock clock;
  const std::vector<model::GeneratedText> answers =
      model::generate(*model.model, *model.weights, model.buffers, requests, options, [&](int64_t request, int32_t id) {
        if (!model.tokenizer) return true;
        StreamingText& text = texts[static_cast<size_t>(request)];
        const std::string now = text.add(model.tokenizer->piece(id));
        if (alone) put(base::printable(now));
        return !text.stopped();
      });
  const double took = base::seconds(clock.now());

  int64_t written = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto sample = static_cast<int64_t>(i) % a.samples;
    const Prompt& prompt = prompts[i / static_cast<size_t>(a.samples)];
    written += static_cast<int64_t>(answers[i].ids.size());
    if (a.json) {
      terminal->line(base::compact(json_of(prompt, sample, answers[i], model.tokenizer ? &texts[i].text() : nullptr)));
    } else if (alone) {
      put(base::printable(texts[i].rest()) + "\n");
    } else if (model.tokenizer) {
      if (i > 0) terminal->line("");
      terminal->line(base::printable(prompt.text + texts[i].text()));
    } else {
      terminal->line(base::compact(base::Json(answers[i].ids)));
    }
  }
  std::fprintf(
      stderr, "%s\n",
      fmt::format("{} in {:.2f} s: {:.1f} tokens/s", base::plural(written, "token"), took, static_cast<double>(written) / took).c_str());
  return 0;
}

}  // namespace cairn::cli
