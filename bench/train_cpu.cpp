// `cairn bench train-cpu`: whole training runs, ours and PyTorch (eager, then compiled) in turn, packed documents, same model, data, batch,
// optimizer and threads.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "bench/peer_python.h"
#include "data/corpus.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;
constexpr int kThreads = 2;

struct Size {
  std::string name;
  int64_t vocab, embed, layers, heads, head_dim, mlp, length, batch, steps;
  double eager_goal, compiled_goal;
};

const std::vector<Size>& sizes() {
  static const std::vector<Size> list{{"5M", 4096, 256, 4, 4, 64, 688, 256, 16, 8, 1.3, 1.2},
                                      {"12M", 8192, 320, 6, 5, 64, 864, 512, 8, 6, 1.4, 1.3}};
  return list;
}

// Documents of 20 to 400 made-up words, a line of JSON each. Words are as frequent as words are (Zipf), so that a tokenizer finds as many
// tokens as a size asks for.
std::string make_words(int64_t bytes) {
  static constexpr std::string_view kSyllables[] = {"ka",  "lo",  "mi",  "ren", "tu", "sha", "por", "vel",
                                                    "dan", "ist", "ero", "gam", "ul", "fen", "bri", "ox"};
  const base::Random random = base::Random(1).for_purpose("bench words");
  std::string text = "{\"text\": \"";
  uint64_t ends = 20, documents = 0;
  for (uint64_t i = 0; static_cast<int64_t>(text.size()) < bytes; ++i) {
    const auto rank = static_cast<uint64_t>(std::pow(20000.0, random.uniform(i)));  // log-uniform: frequency about 1 / rank
    const base::Random word = random.for_index(rank);
    const uint64_t syllables = 1 + word.below(0, 4);
    for (uint64_t s = 1; s <= syllables; ++s) text += kSyllables[word.below(s, std::size(kSyllables))];
    text += i % 13 == 12 ? ". " : " ";
    if (i < ends) continue;
    ends = i + 20 + random.for_purpose("lengths").below(++documents, 380);
    text += "\"}\n{\"text\": \"";
  }
  return text + "the end\"}\n";
}

struct Measured {
  double tokens_per_s = 0, to_first_step_s = 0, peak_mib = 0, first_loss = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Measured run_ours(const Size& s, const BenchOptions& options, const std::string& text, const std::string& out) {
  std::filesystem::remove_all(out);
  std::vector<std::string> command{options.program, "train", "--data", text, "--out", out};
  const auto set = [&](const std::string& assignment) { command.insert(command.end(), {"--set", assignment}); };
  for (const std::string& assignment :
       {fmt::format("data.vocab={}", s.vocab), fmt::format("data.length={}", s.length), fmt::format("model.embed={}", s.embed),
        fmt::format("model.layers={}", s.layers), fmt::format("model.heads={}", s.heads), fmt::format("model.kv_heads={}", s.heads),
        fmt::format("model.head_dim={}", s.head_dim), fmt::format("model.mlp={}", s.mlp), fmt::format("train.global_batch={}", s.batch),
        fmt::format("train.steps={}", s.steps)})
    set(assignment);
  for (const char* assignment : {"model.tied=false", "optim.learning_rate=0.001", "optim.schedule=\"constant\"", "optim.warmup_steps=0",
                                 "data.packing=\"separate\"", "eval.fraction=0", "snapshot.every=0", "log.samples=0"})
    set(assignment);
  const ProcessResult ended = run_program(command, options.scratch + "/ours.log");
  if (ended.exit_code != 0) base::fail_input("our run failed: {}", ended.output);
  Measured m;
  std::vector<double> rates;
  for (const base::MetricsRow& row : base::read_metrics(out + "/metrics.jsonl")) {
    if (row.integer("step") == 1) {
      m.first_loss = row.number("loss");
      m.to_first_step_s = row.number("startup_seconds");
    } else {
      rates.push_back(row.number("tokens_per_s"));
    }
  }
  m.tokens_per_s = median(rates);
  m.peak_mib = static_cast<double>(ended.peak_bytes) / (1 << 20);
  return m;
}

Measured run_peer(const Size& s, const BenchOptions& options, const std::string& python, const std::string& tokens, int32_t end_of_text,
                  bool compiled) {
  base::Json settings;
  settings["vocab"] = s.vocab;
  settings["embed"] = s.embed;
  settings["layers"] = s.layers;
  settings["heads"] = s.heads;
  settings["kv_heads"] = s.heads;
  settings["head_dim"] = s.head_dim;
  settings["mlp"] = s.mlp;
  settings["length"] = s.length;
  settings["batch"] = s.batch;
  settings["steps"] = s.steps;
  settings["threads"] = kThreads;
  settings["tokens"] = tokens;
  settings["end_of_text"] = end_of_text;
  settings["compiled"] = compiled;
  const ProcessResult ended =
      run_program({python, std::string(CAIRN_BENCH_FOLDER) + "/train_cpu_peer.py", base::compact(settings)}, options.scratch + "/peer.log");
  if (ended.exit_code != 0) base::fail_input("the peer's run failed: {}", ended.output);
  const base::Json result = base::parse_json(ended.output.substr(ended.output.find('{')));
  if (!result.is_object()) base::fail_input("the peer's run printed no JSON: {}", ended.output);
  Measured m;
  std::vector<double> rates;
  for (size_t i = 1; i < result["seconds"].size(); ++i)
    rates.push_back(static_cast<double>(s.batch * s.length) / result["seconds"][i].get<double>());
  m.tokens_per_s = median(rates);
  m.to_first_step_s = result["to_first_step"].get<double>();
  m.peak_mib = static_cast<double>(ended.peak_bytes) / (1 << 20);
  m.first_loss = result["losses"][0].get<double>();
  return m;
}

}  // namespace

std::vector<BenchRow> bench_train_cpu(const BenchOptions& options, base::Log& log) {
  const std::string python = peer_python(options, log);
  const std::string text = options.scratch + "/words.jsonl";
  base::write_atomically(text, make_words(4'000'000));
  std::vector<BenchRow> rows;
  for (const Size& s : sizes()) {
    if (!options.only.empty() && options.only != s.name) continue;
    data::DataOptions data;
    data.path = text;
    data.vocab = s.vocab;
    data.length = s.length;
    const data::Corpus corpus =
        data::open_corpus(data, {.cache_folder = options.cache + "/data", .threads = kThreads, .progress = {}}, log);
    if (corpus.tokenizer->vocab_size() != s.vocab)
      base::fail_input("the words give {} tokens where {} are asked for", corpus.tokenizer->vocab_size(), s.vocab);
    const std::string tokens = options.scratch + "/tokens.bin";
    const std::vector<int32_t> ids = corpus.token_streams[0]->ids();
    base::write_atomically(tokens, std::as_bytes(std::span(ids)));
    const int32_t end_of_text = corpus.tokenizer->end_of_text();
    std::vector<double> rate[3], start[3], memory[3];  // ours, eager, compiled
    for (int round = 0; round < kRounds; ++round) {
      log.info("{}: round {} of {}", s.name, round + 1, kRounds);
      const Measured found[3] = {run_ours(s, options, text, options.scratch + "/ours"),
                                 run_peer(s, options, python, tokens, end_of_text, false),
                                 run_peer(s, options, python, tokens, end_of_text, true)};
      for (int who : {0, 1, 2}) {
        CAIRN_CHECK(std::abs(found[0].first_loss - found[who].first_loss) < 0.1, "first losses of {} and {}: not the same work",
                    found[0].first_loss, found[who].first_loss);
        rate[who].push_back(found[who].tokens_per_s);
        start[who].push_back(found[who].to_first_step_s);
        memory[who].push_back(found[who].peak_mib);
      }
    }
    rows.push_back(compare(s.name + " tokens/s, eager", rate[0], rate[1], "tokens/s", Better::higher, s.eager_goal));
    rows.push_back(compare(s.name + " tokens/s, compiled", rate[0], rate[2], "tokens/s", Better::higher, s.compiled_goal));
    rows.push_back(compare(s.name + " start to step 1", start[0], start[1], "s", Better::lower, 1 / 0.4));
    rows.push_back(compare(s.name + " peak memory, eager", memory[0], memory[1], "MiB", Better::lower, 2.0));
    rows.push_back(compare(s.name + " peak memory, compiled", memory[0], memory[2], "MiB", Better::lower, 2.0));
  }
  if (rows.empty()) base::fail_input("--case {}: the cases are 5M and 12M", options.only);
  return rows;
}

}  // namespace cairn::study
