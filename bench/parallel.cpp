// `cairn bench parallel`: layouts over ranks of one machine, ours against PyTorch's DDP, FSDP2 and pipeline schedules over Gloo, in turn,
// same starting values, samples, micro-batches and optimizer, one thread a rank.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bench/peer_python.h"
#include "comm/net/listen.h"
#include "data/corpus.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kSteps = 11, kUnused = 3;  // the first ones warm up
constexpr int64_t kVocab = 1024, kEmbed = 192, kLayers = 8, kHeads = 3, kHeadDim = 64, kMlp = 512;
constexpr int64_t kLength = 128, kBatch = 8, kMicroBatches = 8;
constexpr double kLearningRate = 1e-4;  // so small that rounding has not grown by the last step, and losses can be compared

// A layout in both worlds. With the sizes above equal stages are also the cheapest split in whole layers.
struct Case {
  std::string group;  // the first part of its name
  int64_t ranks = 0;
  std::string peer;                   // what the peer calls it
  std::string kind;                   // what the peer's program calls it
  std::vector<std::string> settings;  // of our recipe
  int64_t stages = 0;                 // 0: no pipeline
  std::string name() const { return fmt::format("{}-{}", group, ranks); }
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const int64_t ranks : {2, 4}) list.push_back({"dp", ranks, "DDP", "ddp", {}});
  for (const int64_t ranks : {2, 4}) list.push_back({"zero3", ranks, "FSDP2", "fsdp", {"memory.zero=3"}});
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
    const std::string peer = schedule == "gpipe" ? "ScheduleGPipe" : schedule == "1f1b" ? "Schedule1F1B" : "ScheduleInterleaved1F1B";
    for (const int64_t ranks : {2, 4}) {
      const std::vector<std::string> settings{fmt::format("mesh.pp={}", ranks), fmt::format("pipeline.schedule=\"{}\"", schedule),
                                              fmt::format("pipeline.micro_batches={}", kMicroBatches)};
      list.push_back({schedule, ranks, peer, schedule, settings, schedule == "interleaved" ? 2 * ranks : ranks});
    }
  }
  return list;
}

struct Measured {
  double step_s = 0, peak_mib = 0, sent_mib = 0, last_loss = 0;  // the median step; the rank with most memory; the one that sent most
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

constexpr double mib(double bytes) { return bytes / (1 << 20); }

// One training run of ours. Whatever a step does not need is off: no evaluation, no text at the end, one snapshot.
ProcessResult train(const BenchOptions& options, const std::string& out, const std::vector<std::string>& settings, int64_t ranks) {
  std::filesystem::remove_all(out);
  std::vector<std::string> command{options.program, "train", "--nproc", std::to_string(ranks), "--out", out};
  for (const std::string& assignment : settings) command.insert(command.end(), {"--set", assignment});
  for (const std::string& assignment :
       {fmt::format("data.length={}", kLength), fmt::format("train.global_batch={}", kBatch), std::string("data.sampler=\"sequential\""),
        std::string("optim.schedule=\"constant\""), std::string("optim.warmup_steps=0"), std::string("eval.fraction=0"),
        std::string("snapshot.every=0"), std::string("log.samples=0")})
    command.insert(command.end(), {"--set", assignment});
  ProcessResult ended = run_program(command, options.scratch + "/ours.log");
  if (ended.exit_code != 0) base::fail_input("our run failed: {}", ended.output);
  return ended;
}

// The model as both start from it: a run whose only step changes nothing. The folder of its snapshot.
std::string make_start(const BenchOptions& options) {
  const std::string out = options.scratch + "/start";
  train(options, out,
        {fmt::format("data.vocab={}", kVocab), fmt::format("model.layers={}", kLayers), fmt::format("model.embed={}", kEmbed),
         fmt::format("model.heads={}", kHeads), fmt::format("model.kv_heads={}", kHeads), fmt::format("model.head_dim={}", kHeadDim),
         fmt::format("model.mlp={}", kMlp), "model.tied=false", "optim.learning_rate=0", "train.steps=1"},
        1);
  return out + "/snapshots/step-00000001";
}

// What the rank that sends most sends in a step, from the run's ledger. Snapshots and agreements at start and end are no part of a step.
double sent_in_step(const std::string& ledger) {
  std::map<int64_t, double> sent;
  const base::Json read = base::parse_json(base::read_file(ledger, 64 << 20));
  for (const base::Json& pair : read["pairs"]) {
    const std::string purpose = pair["purpose"].get<std::string>();
    if (purpose == "state" || purpose == "control" || purpose == "barrier") continue;
    sent[pair["from"].get<int64_t>()] += pair["bytes"].get<double>();
  }
  double most = 0;
  for (const auto& [rank, bytes] : sent) most = std::max(most, bytes);
  CAIRN_CHECK(most > 0, "{} books no bytes of the steps", ledger);
  return most / static_cast<double>(kSteps);
}

Measured run_ours(const Case& c, const BenchOptions& options, const std::string& start) {
  std::vector<std::string> settings = c.settings;
  settings.push_back(fmt::format("model.from=\"{}\"", start));
  settings.push_back(fmt::format("train.steps={}", kSteps));
  settings.push_back(fmt::format("optim.learning_rate={}", kLearningRate));
  const std::string out = options.scratch + "/ours";
  const ProcessResult ended = train(options, out, settings, c.ranks);
  Measured m;
  std::vector<double> seconds;
  for (const base::MetricsRow& row : base::read_metrics(out + "/metrics.jsonl")) {
    if (row.integer("step") > kUnused) seconds.push_back(static_cast<double>(kBatch * kLength) / row.number("tokens_per_s"));
    m.last_loss = row.number("loss");
  }
  CAIRN_CHECK(static_cast<int64_t>(seconds.size()) == kSteps - kUnused, "{} steps were recorded", seconds.size());
  m.step_s = median(seconds);
  m.peak_mib = mib(static_cast<double>(ended.peak_bytes));
  m.sent_mib = mib(sent_in_step(out + "/ledger.json"));
  return m;
}

Measured run_peer(const Case& c, const BenchOptions& options, const std::string& python, const std::string& start,
                  const std::string& tokens) {
  base::Json settings;
  settings["kind"] = c.kind;
  settings["vocab"] = kVocab;
  settings["embed"] = kEmbed;
  settings["layers"] = kLayers;
  settings["heads"] = kHeads;
  settings["head_dim"] = kHeadDim;
  settings["mlp"] = kMlp;
  settings["length"] = kLength;
  settings["batch"] = kBatch;
  settings["learning_rate"] = kLearningRate;
  settings["micro_batches"] = kMicroBatches;
  settings["steps"] = kSteps;
  settings["unused"] = kUnused;
  settings["weights"] = start + "/model.safetensors";
  settings["tokens"] = tokens;
  settings["split"] = std::vector<int64_t>(static_cast<size_t>(c.stages), c.stages == 0 ? 0 : kLayers / c.stages);
  const auto [fd, port] = comm::listen_at("127.0.0.1");
  ::close(fd);
  const std::string script = std::string(CAIRN_BENCH_FOLDER) + "/parallel_peer.py";
  const ProcessResult ended =
      run_program({python, script, std::to_string(c.ranks), std::to_string(port), base::compact(settings)}, options.scratch + "/peer.log");
  if (ended.exit_code != 0) base::fail_input("the peer's run failed: {}", ended.output);
  const size_t begin = ended.output.rfind("{\"seconds\"");
  if (begin == std::string::npos) base::fail_input("the peer's run printed no JSON: {}", ended.output);
  const std::string printed = ended.output.substr(begin);
  const base::Json result = base::parse_json(printed.substr(0, printed.find('\n')));
  const auto seconds = result["seconds"].get<std::vector<double>>(), sent = result["sent"].get<std::vector<double>>();
  Measured m;
  m.step_s = median({seconds.begin() + kUnused, seconds.end()});
  m.peak_mib = mib(static_cast<double>(ended.peak_bytes));
  m.sent_mib = mib(*std::max_element(sent.begin(), sent.end()));
  m.last_loss = result["losses"].back().get<double>();
  return m;
}

// The cases that --case names: one, or all of a group.
std::vector<Case> chosen(const std::string& only) {
  std::vector<Case> list;
  std::vector<std::string> names;
  for (const Case& c : cases()) {
    if (only.empty() || only == c.name() || only == c.group) list.push_back(c);
    names.push_back(c.name());
  }
  if (list.empty()) base::fail_input("--case {}: the cases are {}, or what stands before the number", only, fmt::join(names, ", "));
  return list;
}

}  // namespace

std::vector<BenchRow> bench_parallel(const BenchOptions& options, base::Log& log) {
  const std::vector<Case> list = chosen(options.only);
  const std::string python = peer_python(options, log);
  const std::string start = make_start(options);
  data::DataOptions data;
  data.tokenizer_file = start;
  data.length = kLength;
  const data::Corpus corpus = data::open_corpus(data, {.cache_folder = options.cache + "/data", .threads = 1, .progress = {}}, log);
  const std::string tokens = options.scratch + "/tokens.bin";
  const std::vector<int32_t> ids = corpus.token_streams[0]->ids();
  base::write_atomically(tokens, std::as_bytes(std::span(ids)));
  std::vector<BenchRow> rows;
  for (const Case& c : list) {
    std::vector<double> step[2], memory[2], sent[2];  // ours, the peer's
    for (int round = 0; round < kRounds; ++round) {
      Measured found[2];
      for (const int turn : {0, 1}) {  // who is first changes from round to round
        const int who = (round + turn) % 2;
        found[who] = who == 0 ? run_ours(c, options, start) : run_peer(c, options, python, start, tokens);
      }
      log.info("{}: round {} of {}: a step took {:.1f} ms, with {} {:.1f} ms; losses of step {}: {:.6f} and {:.6f}", c.name(), round + 1,
               kRounds, 1e3 * found[0].step_s, c.peer, 1e3 * found[1].step_s, kSteps, found[0].last_loss, found[1].last_loss);
      CAIRN_CHECK(std::abs(found[0].last_loss - found[1].last_loss) < 1e-4, "{}: losses of {} and {}: not the same work", c.name(),
                  found[0].last_loss, found[1].last_loss);
      for (const int who : {0, 1}) {
        step[who].push_back(1e3 * found[who].step_s);
        memory[who].push_back(found[who].peak_mib);
        sent[who].push_back(found[who].sent_mib);
      }
    }
    rows.push_back(compare(fmt::format("{} step, {}", c.name(), c.peer), step[0], step[1], "ms", Better::lower, 1 / 0.8));
    rows.push_back(compare(fmt::format("{} bytes sent", c.name()), sent[0], sent[1], "MiB", Better::lower, 1));
    rows.push_back(compare(fmt::format("{} peak memory", c.name()), memory[0], memory[1], "MiB", Better::lower, 1));
  }
  return rows;
}

}  // namespace cairn::study
