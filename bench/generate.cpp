// `cairn bench generate`: greedy decoding of one text on this CPU, ours against llama.cpp and `transformers` in turn, on the same fp32
// weights with as many threads.
#include "model/generate/generate.h"

#include <filesystem>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "bench/peer_python.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "snapshot/pretrained.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;
constexpr int kThreads = 2;
constexpr int64_t kTokens = 256;
constexpr size_t kTokensAlike = 16;  // from there on, roundings may have grown into another choice
const std::vector<int32_t> kPrompt{5, 300, 7, 411, 512, 613, 8, 9};

struct Case {
  std::string name;
  model::DecoderShape shape;
};

// The model that `cairn train` starts with, and one of 12 million parameters.
const std::vector<Case>& cases() {
  static const std::vector<Case> list{
      {"1M", {.vocab = 1024, .length = 512}},
      {"12M", {.vocab = 4096, .embed = 320, .layers = 8, .heads = 5, .kv_heads = 5, .head_dim = 64, .mlp = 864, .length = 512}}};
  return list;
}

struct Decoded {
  double tokens_per_s = 0;
  std::vector<int32_t> ids;
};

struct Ours {
  model::DecoderShape shape;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::FlatWeights> weights;
  model::Buffers buffers;

  explicit Ours(const model::DecoderShape& of) : shape(of), model(model::make_decoder(of)) {
    weights = std::make_unique<model::FlatWeights>(model->layout(), at::empty({model->elements()}));
    model::initialize_parameters(*model, weights->flat(), base::Random(1));
    buffers = model->make_buffers(at::kFloat);
  }

  Decoded decode() {
    const base::RealClock clock;
    std::vector<double> times;
    const model::GenerateRequest request{kPrompt};
    const model::GenerateOptions options{.tokens = kTokens, .length_max = shape.length, .sampling = {.temperature = 0}};
    Decoded found;
    found.ids = model::generate(*model, *weights, buffers, {&request, 1}, options,
                                [&](int64_t, int32_t) {
                                  times.push_back(base::seconds(clock.now()));
                                  return true;
                                })[0]
                    .ids;
    found.tokens_per_s = static_cast<double>(times.size() - 1) / (times.back() - times.front());
    return found;
  }
};

Decoded run_peer(const std::string& kind, const std::string& python, const Case& c, const std::string& directory,
                 const BenchOptions& options) {
  base::Json settings;
  settings["kind"] = kind;
  settings["directory"] = directory;
  settings["scratch"] = options.scratch;
  settings["threads"] = kThreads;
  settings["prompt"] = kPrompt;
  settings["tokens"] = kTokens;
  settings["length"] = c.shape.length;
  const ProcessResult ended = run_program({python, fmt::format("{}/generate_peer.py", CAIRN_BENCH_FOLDER), base::compact(settings)},
                                          fmt::format("{}/peer.log", options.scratch));
  const size_t at = ended.output.rfind("result {");
  if (ended.exit_code != 0 || at == std::string::npos) base::fail_input("the run of {} failed: {}", kind, ended.output);
  const std::string line = ended.output.substr(at + 7, ended.output.find('\n', at) - at - 7);
  const base::Json result = base::parse_json(line);
  if (!result.is_object()) base::fail_input("the run of {} printed no JSON: {}", kind, line);
  return {1 / result["seconds_per_token"].get<double>(), result["ids"].get<std::vector<int32_t>>()};
}

// The same weights give the same text.
void check_alike(const Decoded& ours, const Decoded& peer, const std::string& kind) {
  for (size_t i = 0; i < kTokensAlike; ++i)
    if (i >= peer.ids.size() || ours.ids[i] != peer.ids[i]) base::fail_input("{} writes another text from token {} on", kind, i);
}

struct Peer {
  std::string kind, python;
  double goal;
};

std::vector<Peer> peers(const BenchOptions& options, base::Log& log) {
  const std::string version = base::read_file(fmt::format("{}/../deps/torch.txt", CAIRN_BENCH_FOLDER), 4096);
  const size_t pin = version.find("torch==");
  const std::string torch = version.substr(pin, version.find('\n', pin) - pin);
  return {{"llama.cpp", peer_python(options, log, "llama.cpp", {"xllamacpp", "gguf", "numpy", "safetensors"}, "about 200 MB"), 1.0},
          {"transformers", peer_python(options, log, "transformers", {torch, "transformers", "numpy"}, "about 5 GB, a few minutes"), 2.0}};
}

}  // namespace

std::vector<BenchRow> bench_generate(const BenchOptions& options, base::Log& log) {
  at::set_num_threads(kThreads);
  const std::vector<Peer> others = peers(options, log);
  std::vector<BenchRow> rows;
  for (const Case& c : cases()) {
    if (!options.only.empty() && options.only != c.name) continue;
    Ours ours(c.shape);
    const std::string directory = fmt::format("{}/{}", options.scratch, c.name);
    std::filesystem::remove_all(directory);
    snapshot::write_pretrained(directory, c.shape, ours.weights->layout().views(ours.weights->flat()), {}, {}, base::real_disk());
    ours.decode();  // a warm-up
    std::vector<double> rate;
    std::vector<std::vector<double>> theirs(others.size());
    for (int round = 0; round < kRounds; ++round) {
      log.info("{}: round {} of {}", c.name, round + 1, kRounds);
      const Decoded mine = ours.decode();
      rate.push_back(mine.tokens_per_s);
      for (size_t i = 0; i < others.size(); ++i) {
        const Decoded peer = run_peer(others[i].kind, others[i].python, c, directory, options);
        check_alike(mine, peer, others[i].kind);
        theirs[i].push_back(peer.tokens_per_s);
      }
    }
    for (size_t i = 0; i < others.size(); ++i)
      rows.push_back(
          compare(fmt::format("{} against {}", c.name, others[i].kind), rate, theirs[i], "tokens/s", Better::higher, others[i].goal));
  }
  if (rows.empty()) base::fail_input("--case {}: the cases are 1M and 12M", options.only);
  return rows;
}

}  // namespace cairn::study
