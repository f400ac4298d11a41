// `cairn generate`: continues a prompt with a trained model.
#include <filesystem>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/terminal.h"
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

struct GenerateArguments {
  std::string folder, prompt;
  model::GenerateOptions options;
  int64_t seed = 1;
  bool greedy = false, json = false;
};

// DIR is a run directory, whose newest good snapshot is taken, or a snapshot itself.
snapshot::Opened open_model(const std::string& folder, base::Log& log) {
  if (!std::filesystem::is_directory(folder))
    base::fail_input("{}: no such directory; give a run directory or one of its snapshots", folder);
  if (std::filesystem::exists(std::filesystem::path(folder) / "manifest.json")) return snapshot::open(folder);
  std::optional<snapshot::Opened> newest = snapshot::open_latest(folder, log);
  if (!newest) base::fail_input("{}: this run has no snapshot yet", folder);
  return std::move(*newest);
}

int generate_command(GenerateArguments a) {
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
  a.options.length_max = shape.length;
  a.options.stop = tokenizer->end_of_text();
  if (a.greedy) a.options.temperature = 0;
  a.options.random = base::Random(static_cast<uint64_t>(a.seed)).for_purpose("generate");
  const model::Generated answer = model::generate(*llama, weights, buffers, prompt, a.options);
  const std::string text = tokenizer->decode(answer.ids);
  if (a.json) {
    const nlohmann::ordered_json json = {
        {"prompt", a.prompt}, {"ids", answer.ids}, {"text", text}, {"log_probabilities", answer.log_probabilities}};
    terminal->line(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    terminal->line(base::printable(a.prompt + text));
  }
  return 0;
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt with a trained model");
  command->add_option("dir", a->folder, "A run directory or a snapshot")->required();
  command->add_option("--prompt", a->prompt, "What the text begins with; without it the model begins");
  command->add_option("--tokens", a->options.tokens, "Most tokens to add")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  command->add_option("--temperature", a->options.temperature, "0 takes the likeliest token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-k", a->options.top_k, "Draw from so many of the likeliest; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", a->seed, "Decides what is drawn")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_flag("--greedy", a->greedy, "Always the likeliest token");
  command->add_flag("--json", a->json, "Print ids, text and log-probabilities as JSON");
  return [a] { return generate_command(*a); };
}

}  // namespace cairn::cli
