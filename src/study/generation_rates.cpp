#include "study/generation_rates.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "snapshot/pretrained.h"
#include "study/process.h"

namespace cairn::study {
namespace {

// A Hugging Face directory with random weights.
std::string write_wired_model(const std::string& scratch, const std::string& wiring, const GenerationRun& run) {
  model::DecoderShape shape{.vocab = 512, .embed = run.embed, .layers = run.layers, .heads = 8, .kv_heads = 8};
  shape.head_dim = run.embed / shape.heads, shape.mlp = 2 * run.embed, shape.length = 256, shape.residual = wiring;
  if (wiring == "ladder")
    for (int64_t layer = 0; layer < run.layers; ++layer) shape.ladder_layers.push_back(layer);
  const auto model = model::make_decoder(shape);
  const at::Tensor flat = at::empty({model->elements()});
  model::initialize_parameters(*model, flat, base::Random(1));
  const std::string folder = fmt::format("{}/{}-model", scratch, wiring);
  std::filesystem::remove_all(folder);
  snapshot::write_pretrained(folder, shape, model->layout().views(flat), {}, {}, base::real_disk());
  return folder;
}

struct Written {
  std::string ids;  // as JSON
  double tokens_per_s = 0;
};

Written run_generate(const std::string& program, const std::string& scratch, const std::string& folder, int64_t tokens,
                     const std::vector<std::string>& ranks) {
  std::vector<std::string> argv{program,    "generate",     folder,   "--ids",    "1,2,3,4",
                                "--greedy", "--ignore-end", "--json", "--tokens", std::to_string(tokens)};
  argv.insert(argv.end(), ranks.begin(), ranks.end());
  const std::string log_file = scratch + "/generate.log";
  const ProcessResult ended = run_program(argv, log_file);
  const std::string output = base::read_file(log_file, 1 << 20);
  const size_t ids = output.find("\"ids\":["), rate = output.find(" s: ");
  if (ended.exit_code != 0 || ids == std::string::npos || rate == std::string::npos)
    base::fail_input("cairn generate ended with {}: {}", ended.exit_code, ended.output);
  return {output.substr(ids, output.find(']', ids) - ids), std::strtod(output.c_str() + rate + 4, nullptr)};
}

}  // namespace

double WiringRates::ratio() const {
  return *std::max_element(ladder.begin(), ladder.end()) / *std::max_element(standard.begin(), standard.end());
}

WiringRates measure_generation(const std::string& program, const std::string& scratch, const GenerationRun& run, base::Log& log) {
  const std::string standard = write_wired_model(scratch, "standard", run), ladder = write_wired_model(scratch, "ladder", run);
  std::vector<std::string> ranks{"--mesh", fmt::format("tp={}", run.tp)};
  if (!run.links.empty()) ranks.insert(ranks.end(), {"--links", run.links});
  const std::string of_standard = run_generate(program, scratch, standard, run.tokens, {}).ids;
  const std::string of_ladder = run_generate(program, scratch, ladder, run.tokens, {}).ids;
  WiringRates rates;
  for (int round = 0; round < run.rounds; ++round) {
    const Written one = run_generate(program, scratch, standard, run.tokens, ranks);
    const Written other = run_generate(program, scratch, ladder, run.tokens, ranks);
    if (one.ids != of_standard || other.ids != of_ladder)
      base::fail_input("cairn generate --mesh tp={}: gives other tokens than one rank ({} and {})", run.tp, one.ids, of_standard);
    rates.standard.push_back(one.tokens_per_s);
    rates.ladder.push_back(other.tokens_per_s);
    log.info("  tp={}, links {}: standard {:.1f} tokens/s, ladder {:.1f}", run.tp, run.links, one.tokens_per_s, other.tokens_per_s);
  }
  return rates;
}

}  // namespace cairn::study
