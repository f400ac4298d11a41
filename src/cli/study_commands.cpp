// `cairn prove`: the claims of a published system, measured; `cairn bench`: ratios against a peer.
#include <filesystem>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "study/benches.h"
#include "study/claims.h"

namespace cairn::cli {
namespace {

// A folder of one's own under the system's temporary one, removed at the end.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::temp_directory_path() / fmt::format("cairn-{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Progress and warnings go where people look; the result alone goes to standard output when it is JSON.
base::Log make_log(bool json) {
  if (json) return base::Log::quiet();
  return base::Log({.terminal = std::make_shared<base::Terminal>(), .file = {}});
}

struct ProveArguments {
  std::string slug;
  study::ProofOptions options;
  int64_t seed = 1;
  bool json = false, all = false;
};

bool prove_one(const study::Proof& proof, const ProveArguments& a, base::Log& log) {
  const Scratch scratch;
  const base::RealClock clock;
  study::ProofOptions options = a.options;
  options.seed = static_cast<uint64_t>(a.seed);
  options.scratch = scratch.path();
  study::Findings findings;
  proof.prove(options, findings, log);
  base::Terminal terminal;
  if (a.json) {
    terminal.line(study::to_json(proof.slug, findings, base::seconds(clock.now())));
  } else {
    terminal.line(fmt::format("{}: {}\n\n{}\n{} in {}", proof.slug, proof.about, study::to_table(findings),
                              findings.hold() ? "all claims hold" : "NOT all claims hold", base::human_duration(clock.now())));
  }
  return findings.hold();
}

int prove_command(const ProveArguments& a) {
  base::Log log = make_log(a.json);
  std::vector<std::string> slugs;
  for (const study::Proof& proof : study::proofs()) slugs.push_back(proof.slug);
  if (!a.options.data.empty() && !std::filesystem::is_regular_file(a.options.data))
    base::fail_input("--data {}: no such file", a.options.data);
  if (a.all) {
    bool hold = true;
    for (const study::Proof& proof : study::proofs()) hold = prove_one(proof, a, log) && hold;
    return hold ? 0 : 1;
  }
  if (a.slug.empty()) {
    base::Terminal terminal;
    for (const study::Proof& proof : study::proofs()) terminal.line(fmt::format("  {:<20} {}", proof.slug, proof.about));
    return 0;
  }
  for (const study::Proof& proof : study::proofs())
    if (proof.slug == a.slug) return prove_one(proof, a, log) ? 0 : 1;
  base::fail_unknown("proof", a.slug, slugs);
}

struct BenchArguments {
  std::string name;
  study::BenchOptions options;
  bool json = false;
};

int bench_command(BenchArguments a) {
  std::vector<std::string> names;
  for (const study::Bench& bench : study::benches()) names.push_back(bench.name);
  base::Terminal terminal;
  if (a.name.empty()) {
    for (const study::Bench& bench : study::benches()) terminal.line(fmt::format("  {:<20} {}", bench.name, bench.about));
    return 0;
  }
  base::Log log = make_log(a.json);
  const Scratch scratch;
  a.options.program = own_program().string();
  a.options.cache = cache_folder().string();
  a.options.scratch = scratch.path();
  for (const study::Bench& bench : study::benches()) {
    if (bench.name != a.name) continue;
    const std::vector<study::BenchRow> rows = bench.measure(a.options, log);
    terminal.line(a.json ? study::to_json(bench.name, rows) : study::to_table(rows));
    for (const study::BenchRow& row : rows)
      if (!row.pass) return 1;
    return rows.empty() ? 1 : 0;
  }
  base::fail_unknown("bench", a.name, names);
}

}  // namespace

Command add_prove(CLI::App& app) {
  auto a = std::make_shared<ProveArguments>();
  CLI::App* command = app.add_subcommand("prove", "Measure the claims of a published system; without a name, list the proofs");
  command->add_option("slug", a->slug, "Which system");
  command->add_option("--seed", a->seed, "Of everything random in it")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--data", a->options.data, "A text file to measure on, instead of the built-in stories");
  command->add_flag("--json", a->json, "Print the result as JSON, and nothing else");
  command->add_flag("--full", a->options.full, "The long form, which may take more than five minutes");
  command->add_flag("--all", a->all, "Every proof, one after the other");
  command->footer("Exits with 0 only if every claim that could be measured holds, and at least one could.");
  return [a] { return prove_command(*a); };
}

Command add_bench(CLI::App& app) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure ours against a peer in one run; without a name, list the benches");
  command->add_option("name", a->name, "Which bench");
  command->add_option("--case", a->options.only, "One case of it");
  command->add_flag("--json", a->json, "Print the rows as JSON, and nothing else");
  command->footer("A ratio above 1 means ours is better. Exits with 0 only if every goal is reached.");
  return [a] { return bench_command(*a); };
}

}  // namespace cairn::cli
