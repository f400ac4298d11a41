// `cairn prove`: the claims of a published system, measured; `cairn bench`: ratios against a peer.
#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/did_you_mean.h"
#include "base/files.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/environment.h"
#include "kernels/device.h"
#include "lab/commands.h"
#include "study/benches.h"
#include "study/claim_spread.h"
#include "study/claims.h"
#include "study/picture_proofs.h"

namespace cairn::lab {
namespace {

// Progress and warnings go where people look; the result alone goes to standard output when it is JSON.
base::Log make_log(bool json) {
  if (json) return base::Log::quiet();
  return base::Log({.terminal = std::make_shared<base::Terminal>(), .file = {}});
}

study::Findings measure(const study::Proof& proof, const cli::ProveArguments& a, uint64_t seed, base::Log& log) {
  const base::TemporaryFolder scratch;
  const study::ProofOptions options{
      .seed = seed, .data = a.data, .full = a.full, .scratch = scratch.path().string(), .program = cairn_program(), .pictures = a.pictures};
  if (!options.pictures.empty()) base::make_folder(options.pictures);
  study::Findings findings;
  (a.device == "cuda" ? proof.prove_on_gpu : proof.prove)(options, findings, log);
  if (a.device == "cpu" && proof.prove_on_gpu != nullptr)
    findings.skip("what it claims about a GPU", fmt::format("cairn prove {} --device cuda", proof.slug));
  return findings;
}

std::string command_of(const study::Proof& proof, const cli::ProveArguments& a) {
  std::string command = "cairn prove " + proof.slug;
  if (a.seed != 1) command += fmt::format(" --seed {}", a.seed);
  if (a.seeds > 1) command += fmt::format(" --seeds {}", a.seeds);
  if (a.full) command += " --full";
  if (a.device != "cpu") command += " --device " + a.device;
  return command;
}

bool prove_at_seeds(const study::Proof& proof, const cli::ProveArguments& a, base::Log& log) {
  const base::RealClock clock;
  study::SpreadCollector runs;
  for (int64_t i = 0; i < a.seeds; ++i) {
    const auto seed = static_cast<uint64_t>(a.seed + i);
    if (a.seeds > 1) log.info("{}: seed {} ({} of {}), {} so far", proof.slug, seed, i + 1, a.seeds, base::human_duration(clock.now()));
    try {
      runs.add(seed, measure(proof, a, seed, log));
    } catch (const std::exception& error) {  // the other seeds are worth knowing all the same
      log.error("{}: seed {}: {}", proof.slug, seed, error.what());
      runs.add_error(seed, error.what());
    }
  }
  const study::SpreadFindings findings = runs.collect();
  base::Terminal terminal;
  if (a.json)
    terminal.line(study::to_json(proof.slug, findings, base::seconds(clock.now())));
  else if (a.markdown)
    terminal.line(study::to_markdown(proof.slug, proof.about, command_of(proof, a), findings));
  else
    terminal.line(fmt::format("{}: {}\n\n{}\n{} at {} seeds in {}", proof.slug, proof.about, study::to_table(findings),
                              findings.hold() ? "all claims hold" : "NOT all claims hold", a.seeds, base::human_duration(clock.now())));
  return findings.hold();
}

bool prove_one(const study::Proof& proof, const cli::ProveArguments& a, base::Log& log) {
  if (a.seeds > 1 || a.markdown) return prove_at_seeds(proof, a, log);
  const base::RealClock clock;
  const study::Findings findings = measure(proof, a, static_cast<uint64_t>(a.seed), log);
  base::Terminal terminal;
  if (a.json) {
    terminal.line(study::to_json(proof.slug, findings, base::seconds(clock.now())));
  } else {
    terminal.line(fmt::format("{}: {}\n\n{}\n{} in {}", proof.slug, proof.about, study::to_table(findings),
                              findings.hold() ? "all claims hold" : "NOT all claims hold", base::human_duration(clock.now())));
  }
  return findings.hold();
}

// Only some proofs have a part on a folder of files.
void check_data(const cli::ProveArguments& a) {
  if (a.data.empty()) return;
  if (std::filesystem::is_directory(a.data)) {
    const std::vector<std::string>& able = study::picture_proofs();
    if (!a.slug.empty() && std::count(able.begin(), able.end(), a.slug) > 0) return;
    base::fail_input("--data {}: a folder, and {} reads a text file. Give a file; {} take a folder.", a.data,
                     a.slug.empty() ? "most of the proofs" : a.slug, fmt::join(able, ", "));
  }
  if (!std::filesystem::is_regular_file(a.data)) base::fail_input("--data {}: no such file", a.data);
}

}  // namespace

int prove_command(const cli::ProveArguments& a) {
  base::Log log = make_log(a.json || a.markdown);
  std::vector<std::string> slugs;
  for (const study::Proof& proof : study::proofs()) slugs.push_back(proof.slug);
  const auto found = std::find_if(study::proofs().begin(), study::proofs().end(), [&](const auto& proof) { return proof.slug == a.slug; });
  if (!a.slug.empty() && found == study::proofs().end()) base::fail_unknown("proof", a.slug, slugs);
  check_data(a);
  if (a.device == "cuda" && (a.all || !a.slug.empty())) kernels::device_from_name("cuda");
  const auto can = [&](const study::Proof& proof) { return a.device == "cpu" || proof.prove_on_gpu != nullptr; };
  if (a.all) {
    bool hold = true;
    for (const study::Proof& proof : study::proofs()) {
      if (!can(proof)) continue;
      try {
        hold = prove_one(proof, a, log) && hold;
      } catch (const std::exception& error) {  // the others are worth knowing all the same
        log.error("{}: {}", proof.slug, error.what());
        hold = false;
      }
    }
    return hold ? 0 : 1;
  }
  if (a.slug.empty()) {
    base::Terminal terminal;
    for (const study::Proof& proof : study::proofs())
      if (can(proof)) terminal.line(fmt::format("  {:<20} {}", proof.slug, proof.about));
    return 0;
  }
  if (!can(*found)) base::fail_input("--device cuda: {} claims nothing of a GPU that could be measured yet: leave it out", a.slug);
  return prove_one(*found, a, log) ? 0 : 1;
}

int bench_command(const cli::BenchArguments& a) {
  std::vector<std::string> names;
  for (const study::Bench& bench : study::benches()) names.push_back(bench.name);
  base::Terminal terminal;
  if (a.name.empty()) {
    for (const study::Bench& bench : study::benches()) terminal.line(fmt::format("  {:<20} {}", bench.name, bench.about));
    return 0;
  }
  base::Log log = make_log(a.json);
  const base::TemporaryFolder scratch;
  const study::BenchOptions options{.only = a.only,
                                    .data = a.data,
                                    .steps = a.steps,
                                    .precision = a.precision,
                                    .kernels = a.kernels,
                                    .sets = a.sets,
                                    .limit_s = a.limit_s,
                                    .out = a.out,
                                    .program = cairn_program(),
                                    .cache = cli::cache_folder().string(),
                                    .scratch = scratch.path().string()};
  for (const study::Bench& bench : study::benches()) {
    if (bench.name != a.name) continue;
    const std::vector<study::BenchRow> rows = bench.measure(options, log);
    terminal.line(a.json ? study::to_json(bench.name, rows) : study::to_table(rows));
    for (const study::BenchRow& row : rows)
      if (!row.pass) return 1;
    return rows.empty() ? 1 : 0;
  }
  base::fail_unknown("bench", a.name, names);
}

}  // namespace cairn::lab
