// `cairn bench step-plans`: documents with a long tail of lengths on 4 ranks of this machine, one thread each. Ours: a plan for each step
// (ByteScale, FlexSP). The peer is Cairn itself with mesh.cp = 4 for all, the same documents packed. Links as they are here, and of 200
// Mbit/s a rank.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kRanks = 4, kDocuments = 240, kSteps = 5, kUnused = 2, kBatch = 48, kLongest = 4096, kTokensPerRank = 1024;

// exp(N(ln 200, 1.1)) + 16 bytes each, at most kLongest.
std::string write_documents(const std::string& scratch) {
  const std::string file = scratch + "/documents.txt";
  std::ofstream out(file);
  const base::Random random = base::Random(1).for_purpose("lengths");
  uint64_t drawn = 0;
  for (int64_t i = 0; i < kDocuments; ++i) {
    const double length = 16 + std::exp(std::log(200.0) + 1.1 * static_cast<double>(random.normal(static_cast<uint64_t>(i))));
    for (int64_t k = 0; k < std::min(kLongest, static_cast<int64_t>(length)); ++k)
      out << static_cast<char>('a' + random.below(drawn++, 26));
    if (i + 1 < kDocuments) out << "<|endoftext|>";
  }
  return file;
}

struct Measured {
  double tokens_per_s = 0, step_s = 0, plan_s = 0;  // of the run after its first steps; 0: no plans
};

Measured train(const BenchOptions& options, const std::string& documents, const std::string& links,
               const std::vector<std::string>& settings) {
  const std::string out = options.scratch + "/run";
  std::filesystem::remove_all(out);
  std::vector<std::string> command{options.program, "train", "--nproc", std::to_string(kRanks), "--out", out};
  if (!links.empty()) command.insert(command.end(), {"--links", links});
  std::vector<std::string> all{"data.path=\"" + documents + "\"",
                               "data.tokenizer=\"bytes\"",
                               fmt::format("data.length={}", kLongest),
                               "model.layers=4",
                               "model.embed=128",
                               "model.heads=4",
                               "model.kv_heads=4",
                               "model.mlp=344",
                               "eval.fraction=0",
                               "snapshot.every=0",
                               "snapshot.last=false",
                               "log.samples=0",
                               fmt::format("train.steps={}", options.steps > 0 ? options.steps : kSteps)};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& one : all) command.insert(command.end(), {"--set", one});
  const ProcessResult ended = run_program(command, options.scratch + "/run.log");
  if (ended.exit_code != 0) base::fail_input("the run failed: {}", ended.output);
  double tokens = 0, seconds = 0, plan_s = 0, steps = 0;
  for (const base::MetricsRow& row : base::read_metrics(out + "/metrics.jsonl")) {
    if (row.integer("step") <= kUnused) continue;
    const double step_s = row.number("step_seconds");
    tokens += row.number("tokens_per_s") * step_s, seconds += step_s, ++steps;
    if (row.has("plan_seconds")) plan_s += row.number("plan_seconds");
  }
  CAIRN_CHECK(steps > 0, "{} has no steps after the first {}", out, kUnused);
  return {tokens / seconds, seconds / steps, plan_s / steps};
}

}  // namespace

std::vector<BenchRow> bench_step_plans(const BenchOptions& options, base::Log& log) {
  const std::string documents = write_documents(options.scratch);
  // As many tokens in a step: packs of kLongest tokens hold about so many documents.
  const std::vector<std::string> fixed{"data.packing=\"documents\"", fmt::format("mesh.cp={}", kRanks), "train.global_batch=4"};
  std::vector<BenchRow> rows;
  for (const std::string plan : {"bytescale", "flexsp"})
    for (const std::string links : {"", "20us,200Mbit,card"}) {
      const std::string name = fmt::format("{}-{}", plan, links.empty() ? "here" : "200Mbit");
      if (!options.only.empty() && options.only != name) continue;
      std::vector<double> ours, peer, step_s, plan_s;
      for (int round = 0; round < kRounds; ++round) {
        log.info("{}: round {} of {}", name, round + 1, kRounds);
        const Measured planned =
            train(options, documents, links,
                  {"data.packing=\"sequences\"", fmt::format("context.plan=\"{}\"", plan),
                   fmt::format("context.tokens_per_rank={}", kTokensPerRank), fmt::format("train.global_batch={}", kBatch)});
        const Measured one = train(options, documents, links, fixed);
        ours.push_back(planned.tokens_per_s), peer.push_back(one.tokens_per_s);
        step_s.push_back(planned.step_s), plan_s.push_back(planned.plan_s);
      }
      rows.push_back(compare(name + " against cp = 4", ours, peer, "tokens/s", Better::higher, links.empty() ? 1 : 1.5));
      rows.push_back(compare(name + ", planning against the step it is hidden behind", plan_s, step_s, "s", Better::lower, 1));
    }
  if (rows.empty())
    base::fail_input("--case {}: the cases are bytescale-here, bytescale-200Mbit, flexsp-here and flexsp-200Mbit", options.only);
  return rows;
}

}  // namespace cairn::study
