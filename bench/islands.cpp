// `cairn bench islands`: one small decoder on real text, on 4 islands that are processes joined by links of 100 Mbit/s and 50 ms: a sum at
// every step against the rules by which islands train apart. Everything is read off the runs: losses and waits from metrics.jsonl, bytes
// from the ledgers.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/text.h"
#include "bench/islands_peer.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kIslands = 4;
constexpr int64_t kSteps = 600, kLonger = 2;  // islands that train apart go on for so many times the steps, to see when they are as far
constexpr const char* kLinks = "50ms,100Mbit";

struct Case {
  std::string name;
  std::vector<std::string> sets;
};

std::vector<Case> cases() {
  const std::string every = "sync.island.every=30", warm = "sync.island.outer_warmup=20";
  return {{"sum", {}},
          {"averaging", {"sync.island.kind=diloco", every, "sync.island.outer_lr=1", "sync.island.outer_momentum=0"}},
          {"diloco", {"sync.island.kind=diloco", every}},
          {"diloco-warm", {"sync.island.kind=diloco", every, warm}},
          {"diloco-warm-0.4", {"sync.island.kind=diloco", every, warm, "sync.island.outer_lr=0.4"}},
          {"streaming-fp32", {"sync.island.kind=streaming_diloco", every, warm, "sync.island.delay=5", "sync.island.wire=fp32"}},
          {"streaming-4bit", {"sync.island.kind=streaming_diloco", every, warm, "sync.island.delay=5"}},
          {"noloco", {"sync.island.kind=noloco", every}},
          {"co2", {"sync.island.kind=co2", every}}};
}

struct Measured {
  double loss = 0;                                                  // held out, after kSteps
  double seconds = 0, bytes = 0, stall = 0;                         // of those steps: of the first island; sent by all
  double reached_steps = std::numeric_limits<double>::quiet_NaN();  // of the sum's loss
  double reached_seconds = std::numeric_limits<double>::quiet_NaN();
  double reached_bytes = std::numeric_limits<double>::quiet_NaN();
};

double bytes_in(const std::filesystem::path& ledger) {
  double bytes = 0;
  const base::Json read = base::parse_json(base::read_file(ledger, 64 << 20));
  for (const base::Json& pair : read["pairs"]) {
    const std::string purpose = pair["purpose"].get<std::string>();
    if (purpose == "gradient" || purpose == "parameter") bytes += pair["bytes"].get<double>();
  }
  return bytes;
}

std::vector<base::MetricsRow> train(const BenchOptions& options, const Case& c, int64_t steps, const std::string& out) {
  std::vector<std::string> command{options.program, "train", "--islands", std::to_string(kIslands), "--links", kLinks, "--out", out};
  if (!options.data.empty()) command.insert(command.end(), {"--data", options.data});
  for (const std::string& set : c.sets) command.insert(command.end(), {"--set", set});
  for (const std::string& set :
       {fmt::format("train.steps={}", steps), std::string("model.layers=6"), std::string("model.embed=128"), std::string("model.heads=4"),
        std::string("model.kv_heads=4"), std::string("model.mlp=344"), std::string("data.vocab=1024"), std::string("data.length=64"),
        std::string("train.global_batch=16"), std::string("optim.schedule=constant"), std::string("optim.warmup_steps=30"),
        std::string("optim.learning_rate=0.001"), std::string("eval.every=30"), std::string("eval.samples=64"),
        std::string("snapshot.every=0"), std::string("log.samples=0"), std::string("log.trace=false"),
        std::string("log.tensorboard=false")})
    command.insert(command.end(), {"--set", set});
  const ProcessResult ended = run_program(command, options.scratch + "/run.log");
  if (ended.exit_code != 0) base::fail_input("{}: the run failed: {}", c.name, ended.output);
  return base::read_metrics(std::filesystem::path(out) / "metrics.jsonl");
}

// The learning rate stays as it is, so one long run tells what shorter ones come to.
Measured measure(const BenchOptions& options, const Case& c, double to_reach) {
  const bool apart = !c.sets.empty();
  const std::string out = options.scratch + "/" + c.name;
  const int64_t steps = apart ? kLonger * kSteps : kSteps;
  Measured m;
  for (const base::MetricsRow& row : train(options, c, steps, out)) {
    const bool in_time = row.integer("step") <= kSteps;
    if (in_time) m.seconds = row.number("seconds");
    if (in_time && row.has("stall_s")) m.stall += row.number("stall_s");
    if (!row.has("eval_loss")) continue;
    if (in_time) m.loss = row.number("eval_loss");
    if (apart && std::isnan(m.reached_steps) && row.number("eval_loss") <= to_reach) {
      m.reached_steps = static_cast<double>(row.integer("step"));
      m.reached_seconds = row.number("seconds");
    }
  }
  double bytes = bytes_in(std::filesystem::path(out) / "ledger.json");
  for (int island = 1; apart && island < kIslands; ++island)
    bytes += bytes_in(std::filesystem::path(out) / fmt::format("island-{}", island) / "ledger.json");
  m.bytes = bytes / static_cast<double>(steps) * static_cast<double>(kSteps);
  if (!apart) {
    m.reached_steps = static_cast<double>(kSteps);
    m.reached_seconds = m.seconds;
  }
  m.reached_bytes = bytes / static_cast<double>(steps) * m.reached_steps;
  return m;
}

BenchRow row(const std::string& name, double ours, double peer, const std::string& unit, double ratio, double goal) {
  return {.case_name = name, .ours = ours, .peer = peer, .unit = unit, .ratio = ratio, .spread = 0, .goal = goal, .pass = ratio >= goal};
}

// The same work in plain PyTorch: DiLoCo, and gradients at every step.
void add_peer_rows(const BenchOptions& options, const std::map<std::string, Measured>& found, std::vector<BenchRow>& rows, base::Log& log) {
  for (const auto& [ours, name] :
       {std::pair{"diloco", "plain PyTorch DiLoCo"}, std::pair{"sum", "plain PyTorch, an all-reduce at every step"}}) {
    const auto curve = run_peer_islands({.recipe = options.scratch + "/sum/recipe.toml",
                                         .links = kLinks,
                                         .islands = kIslands,
                                         .every = 30,
                                         .ddp = std::string_view(ours) == "sum"},
                                        options, log);
    if (!curve) return;
    const PeerPoint& end = curve->back();
    const Measured& m = found.at(ours);
    log.info("{}: held-out loss {:.4f} at first, {:.4f} after {} steps, {:.1f} s, {} sent, {:.1f} % waiting", name,
             curve->front().eval_loss, end.eval_loss, end.step, end.seconds, base::human_bytes(static_cast<int64_t>(end.bytes)),
             100 * end.waited_s / end.seconds);
    rows.push_back(
        row(fmt::format("{} to {}: bytes of all islands", ours, name), m.bytes / 1e6, end.bytes / 1e6, "MB", end.bytes / m.bytes, 0));
    rows.push_back(
        row(fmt::format("{} to {}: time of the same steps", ours, name), m.seconds, end.seconds, "s", end.seconds / m.seconds, 1));
    rows.push_back(
        row(fmt::format("{} to {}: held-out loss", ours, name), m.loss, end.eval_loss, "nats", end.eval_loss / m.loss, 1 / 1.02));
  }
}

}  // namespace

std::vector<BenchRow> bench_islands(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  std::map<std::string, Measured> found;
  for (const Case& c : cases()) {
    if (!options.only.empty() && options.only != c.name && c.name != "sum") continue;
    const Measured m = found[c.name] = measure(options, c, found["sum"].loss);
    log.info("{}: held-out loss {:.4f} after {} steps, {:.1f} s, {} sent, {:.1f} % waiting; the sum's loss after {:.0f} steps, {:.1f} s",
             c.name, m.loss, kSteps, m.seconds, base::human_bytes(static_cast<int64_t>(m.bytes)), 100 * m.stall / m.seconds,
             m.reached_steps, m.reached_seconds);
  }
  const Measured sum = found.at("sum");
  for (const auto& [name, m] : found) {
    if (name == "sum") continue;
    const bool streaming = name == "streaming-4bit";
    rows.push_back(row(name + ": bytes of all islands", m.bytes / 1e6, sum.bytes / 1e6, "MB", sum.bytes / m.bytes, streaming ? 100 : 1));
    rows.push_back(row(name + ": time of the same steps", m.seconds, sum.seconds, "s", sum.seconds / m.seconds, 1));
    rows.push_back(row(name + ": time to the sum's loss", m.reached_seconds, sum.seconds, "s", sum.seconds / m.reached_seconds, 0));
    rows.push_back(row(name + ": bytes to the sum's loss", m.reached_bytes / 1e6, sum.bytes / 1e6, "MB", sum.bytes / m.reached_bytes, 0));
    rows.push_back(row(name + ": steps to the sum's loss", m.reached_steps, static_cast<double>(kSteps), "steps",
                       static_cast<double>(kSteps) / m.reached_steps, 0));
    rows.push_back(
        row(name + ": held-out loss of the same tokens", m.loss, sum.loss, "nats", sum.loss / m.loss, name == "diloco" ? 1 / 1.15 : 0));
    if (streaming)
      rows.push_back(row(name + ": share of the time that computes", 1 - m.stall / m.seconds, 1, "", 1 - m.stall / m.seconds, 0.95));
  }
  if (found.contains("streaming-4bit") && found.contains("streaming-fp32") && found.contains("diloco-warm-0.4")) {
    const double coarse = found["streaming-4bit"].loss, exact = found["streaming-fp32"].loss, plain = found["diloco-warm-0.4"].loss;
    rows.push_back(row("streaming-4bit to streaming-fp32: held-out loss", coarse, exact, "nats", exact / coarse, 1 / 1.02));
    rows.push_back(row("streaming-4bit to diloco at the same outer rate: held-out loss", coarse, plain, "nats", plain / coarse, 1 / 1.10));
  }
  if (found.contains("diloco")) add_peer_rows(options, found, rows, log);
  return rows;
}

}  // namespace cairn::study
