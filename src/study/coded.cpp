#include "study/coded.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "comm/world.h"
#include "federate/training_streams.h"
#include "sync/coding/straggler_chain.h"

namespace cairn::study {
namespace {

constexpr int kBestShown = 5;

federate::MasterOptions master_options(const CodedRecipe& recipe, const federate::TrainingJobs& jobs) {
  const CodedStudyOptions& o = recipe.study;
  federate::MasterOptions options{.workers = static_cast<int>(o.workers),
                                  .jobs = jobs[0].config.settings.train.steps * o.streams,
                                  .spec = spec_of(o),
                                  .choose = o.params == "auto" && o.scheme != "none",
                                  .any_kind = o.scheme == "auto"};
  options.delay_max = static_cast<int>(o.max_delay);
  options.probe_rounds = o.probe_rounds;
  options.mu = o.mu;
  options.code = o.code;
  options.seed = static_cast<uint64_t>(jobs[0].config.settings.train.seed);
  options.dead_after = o.dead_after;
  options.message_bytes_max = federate::message_bytes_max(jobs);
  return options;
}

base::MetricsRow row_of(const federate::RoundRecord& round) {
  return {.values = {{"round", round.round},
                     {"scheme", round.scheme},
                     {"seconds", round.seconds},
                     {"load", round.load},
                     {"waited", static_cast<int64_t>(round.waited)},
                     {"late", std::vector<double>(round.late.begin(), round.late.end())},
                     {"samples", std::vector<double>(round.samples.begin(), round.samples.end())},
                     {"job", round.job}}};
}

// How often each worker was late.
std::map<int, double> late_shares(const federate::MasterResult& master) {
  std::map<int, double> shares;
  for (const federate::RoundRecord& round : master.rounds)
    for (const int worker : round.late) shares[worker] += 1.0 / static_cast<double>(master.rounds.size());
  return shares;
}

std::map<federate::SchemeKind, std::vector<federate::Choice>> best_of_kinds(const federate::MasterResult& master) {
  std::map<federate::SchemeKind, std::vector<federate::Choice>> best;
  for (const federate::Choice& one : master.choices)
    if (auto& list = best[one.spec.kind]; list.size() < kBestShown) list.push_back(one);
  return best;
}

void write_results(const CodedResult& result, const std::filesystem::path& out) {
  base::OrderedJson json{{"scheme", result.master.spec.text()},
                         {"seconds", result.master.seconds},
                         {"probe_seconds", result.master.probe_seconds},
                         {"probe_jobs", result.master.probe_jobs},
                         {"uncoded_seconds", result.uncoded_seconds},
                         {"rounds", result.master.rounds.size()},
                         {"lost", result.master.lost},
                         {"losses", result.losses},
                         {"held_out", result.held_out}};
  for (const auto& [worker, share] : late_shares(result.master)) json["late"][std::to_string(worker)] = share;
  for (const auto& [kind, list] : best_of_kinds(result.master))
    for (const federate::Choice& one : list)
      json["choices"].push_back({{"scheme", one.spec.text()}, {"seconds", one.seconds}, {"load", one.load}});
  base::write_atomically(out / "results.json", base::pretty(json) + "\n");
}

CodedResult run_master(comm::World& world, const CodedRecipe& recipe, const federate::TrainingJobs& jobs, const std::filesystem::path& out,
                       const base::Stop& stop, base::Log& log) {
  federate::TrainingStreams streams(jobs);
  const federate::MasterOptions options = master_options(recipe, jobs);
  base::make_folder(out);
  std::filesystem::remove(out / "rounds.jsonl");
  base::Metrics rounds(out / "rounds.jsonl");
  CodedResult result;
  result.master = federate::run_coded_master(world, options, streams, stop, [&](const federate::RoundRecord& round) {
    rounds.write(row_of(round));
    log.info("round {} {}: {:.3f} s, load {:.4f}, late [{}]{}{}", round.round, round.scheme, round.seconds, round.load,
             fmt::join(round.late, " "), round.waited ? ", waited behind the cut-off" : "",
             round.job >= 0 ? fmt::format(", job {} complete", round.job) : "");
  });
  result.losses = streams.losses();
  result.held_out = streams.held_out();
  streams.save(log, world.wall());
  if (!result.master.profile.seconds.empty()) {
    const auto n = static_cast<int>(result.master.profile.seconds.front().size());
    const int64_t left = options.jobs - result.master.probe_jobs;
    result.uncoded_seconds =
        result.master.probe_seconds +
        federate::replay(federate::make_scheme({}, n, left, options.code, options.seed), options.mu, result.master.profile.times()).seconds;
  }
  write_results(result, out);
  return result;
}

}  // namespace

federate::SchemeSpec spec_of(const CodedStudyOptions& o) {
  federate::SchemeSpec spec{
      .s = static_cast<int>(o.s), .b = static_cast<int>(o.b), .w = static_cast<int>(o.w), .lambda = static_cast<int>(o.lambda)};
  for (const auto& name : federate::kSchemeKindNames)
    if (o.scheme == federate::name_of(name.value)) spec.kind = name.value;
  return spec;
}

CodedResult run_coded(comm::World& world, const CodedRecipe& recipe, const std::filesystem::path& out, const std::string& cache,
                      const base::Stop& stop, base::Log& log) {
  const bool is_master = world.rank() == 0;
  const federate::TrainingJobs jobs(recipe.streams, is_master ? out : std::filesystem::path(), cache, 1);
  if (is_master) return run_master(world, recipe, jobs, out, stop, log);
  const MadeStragglers& made = recipe.stragglers;
  federate::WorkerOptions options{.worker = world.rank() - 1, .message_bytes_max = federate::message_bytes_max(jobs)};
  sync::StragglerChain chain({made.enter, made.leave, made.delay_s}, static_cast<uint64_t>(jobs[0].config.settings.train.seed),
                             options.worker);
  int64_t next = 0;
  bool slow = false;
  options.delay = [&](int64_t round, double load) {
    for (; next <= round; ++next) slow = chain.next();  // rounds without a task count too
    return made.base_s + made.load_s * load + (slow ? made.delay_s : 0);
  };
  federate::TrainingGradients gradients(jobs);
  federate::run_coded_worker(world, options, gradients);
  return {};
}

std::string to_tables(const CodedResult& result) {
  const federate::MasterResult& master = result.master;
  std::string text = fmt::format("{}: {} rounds in {:.2f} s", master.spec.text(), master.rounds.size(), master.seconds);
  if (result.uncoded_seconds > 0)
    text += fmt::format(" ({:.2f} s of them the probe; without coding, predicted: {:.2f} s)", master.probe_seconds, result.uncoded_seconds);
  text += "\n\nmodel   last loss   held-out\n";
  for (size_t i = 0; i < result.losses.size(); ++i)
    text += fmt::format("{:<7} {:>9.5f}  {:>9.5f}\n", i, result.losses[i].empty() ? 0 : result.losses[i].back(), result.held_out[i]);
  text += "\nworker  late\n";
  for (const auto& [worker, share] : late_shares(master)) text += fmt::format("{:<7} {:.1f} %\n", worker, 100 * share);
  if (master.choices.empty()) return text;
  text += "\nparameters        load    predicted s\n";
  for (const auto& [kind, list] : best_of_kinds(master))
    for (const federate::Choice& one : list) text += fmt::format("{:<16} {:.4f}  {:>9.2f}\n", one.spec.text(), one.load, one.seconds);
  return text;
}

}  // namespace cairn::study
