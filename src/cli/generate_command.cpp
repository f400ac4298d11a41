// `cairn generate`: continues a prompt with a trained model.
#include <filesystem>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "kernels/aten.h"
#include "model/generate.h"
#include "model/llama.h"
#include "model/llama_config.h"
#include "snapshot/snapshot.h"

namespace cairn::cli {
namespace {

// DIR is a run directory, whose newest good snapshot is taken, or a snapshot itself.
snapshot::Opened open_model(const std::string& folder, base::Log& log) {
  if (!std::filesystem::is_directory(folder))
    base::fail_input("{}: no such directory; give a run directory or one of its snapshots", folder);
  if (std::filesystem::exists(std::filesystem::path(folder) / "manifest.json")) return snapshot::open(folder);
  std::optional<snapshot::Opened> newest = snapshot::open_latest(folder, log);
  if (!newest) base::fail_input("{}: this run has no snapshot yet", folder);
  return std::move(*newest);
}

}  // namespace

int generate_command(const GenerateArguments& a) {
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.level = base::Level::warn, .terminal = terminal, .file = {}});
  at::set_num_threads(processors());
  const snapshot::Opened opened = open_model(a.folder, log);
  if (!opened.texts().contains("config.json") || !opened.texts().contains("tokenizer.json"))
    base::fail_input("{}: not a language model (no config.json and tokenizer.json)", opened.path());
  const std::unique_ptr<data::Tokenizer> tokenizer = data::read_tokenizer(opened.path() + "/tokenizer.json");
  const model::LlamaShape shape = model::parse_llama_config(opened.text("config.json"), opened.path() + "/config.json");
  const std::unique_ptr<model::Model> llama = model::make_llama(shape);
  const model::FlatWeights weights(llama->layout(), at::empty({llama->elements()}));
  opened.load_into("model", weights.layout().views(weights.flat()));
  model::Buffers buffers = llama->make_buffers(at::kFloat);

  std::vector<int32_t> prompt = tokenizer->encode(a.prompt);
  prompt.insert(prompt.begin(), tokenizer->end_of_text());
  if (static_cast<int64_t>(prompt.size()) >= shape.length)
    base::fail_input("--prompt: {} tokens, and the model reads at most {}", prompt.size(), shape.length);
  model::GenerateOptions options = a.options;
  options.length_max = shape.length;
  options.stop = tokenizer->end_of_text();
  if (a.greedy) options.temperature = 0;
  options.random = base::Random(static_cast<uint64_t>(a.seed)).for_purpose("generate");
  const model::Generated answer = model::generate(*llama, weights, buffers, prompt, options);
  const std::string text = tokenizer->decode(answer.ids);
  if (a.json) {
    const base::OrderedJson json = {
        {"prompt", a.prompt}, {"ids", answer.ids}, {"text", text}, {"log_probabilities", answer.log_probabilities}};
    terminal->line(base::compact(json));
  } else {
    terminal->line(base::printable(a.prompt + text));
  }
  return 0;
}

}  // namespace cairn::cli
