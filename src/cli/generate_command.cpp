// `cairn generate`: continues a prompt with a trained model.
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
#include "model/decoder.h"
#include "model/generate.h"
#include "snapshot/pretrained.h"

namespace cairn::cli {
int generate_command(const GenerateArguments& a) {
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.level = base::Level::warn, .terminal = terminal, .file = {}});
  at::set_num_threads(processors());
  const snapshot::Pretrained opened = snapshot::open_pretrained(a.folder, log);
  if (!opened.texts.contains("tokenizer.json")) base::fail_input("{}: no tokenizer.json there", opened.path);
  const std::unique_ptr<data::Tokenizer> tokenizer = data::read_tokenizer(opened.path + "/tokenizer.json");
  const model::DecoderShape& shape = opened.shape;
  const std::unique_ptr<model::Model> decoder = model::make_decoder(shape);
  const model::FlatWeights weights(decoder->layout(), at::empty({decoder->elements()}));
  opened.load_into(weights.layout().views(weights.flat()));
  model::Buffers buffers = decoder->make_buffers(at::kFloat);

  std::vector<int32_t> prompt = tokenizer->encode(a.prompt);
  prompt.insert(prompt.begin(), static_cast<int32_t>(shape.tokens.bos.value_or(tokenizer->end_of_text())));
  if (static_cast<int64_t>(prompt.size()) >= shape.length)
    base::fail_input("--prompt: {} tokens, and the model reads at most {}", prompt.size(), shape.length);
  model::GenerateOptions options = a.options;
  options.length_max = shape.length;
  options.stop = tokenizer->end_of_text();
  if (a.greedy) options.temperature = 0;
  options.random = base::Random(static_cast<uint64_t>(a.seed)).for_purpose("generate");
  const model::Generated answer = model::generate(*decoder, weights, buffers, prompt, options);
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
