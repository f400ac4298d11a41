// Gradient coding: exact gradients on time although some workers are late. GC, SR-SGC and M-SGC against waiting for everybody, live with
// processes and in virtual time.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "federate/coding/choose.h"
#include "federate/coding/job_gradients.h"
#include "kernels/aten.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "study/process.h"
#include "sync/coding/straggler_chain.h"
#include "train/train.h"

namespace cairn::study {
namespace {

using federate::ChooseOptions, federate::SchemeKind, federate::SchemeSpec, federate::WorkerSeconds;
using sync::CodeKind;

constexpr double kRunLimitS = 200;
constexpr double kHalfUlp = 1.0 / (1 << 24);  // of fp32
constexpr int64_t kResultBytesMax = 16 << 20;

// 1. Codes: every set of n - s workers, on fp32 vectors; integers with the repetition code.
void codes(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr size_t kElements = 64;
  double few_error = 0, repetition_error = 0, sets = 0, to_bound = 0;
  for (const int n : {5, 8, 16})
    for (int s = 0; s < (n == 16 ? 5 : n); ++s) {
      const sync::GradientCode code(CodeKind::automatic, n, s, options.seed);
      const base::Random random = base::Random(options.seed).for_purpose("gradients").for_index(static_cast<uint64_t>(n));
      std::vector<std::vector<float>> parts(static_cast<size_t>(n), std::vector<float>(kElements));
      std::vector<double> wanted(kElements);
      for (size_t j = 0; j < parts.size(); ++j)
        for (size_t e = 0; e < kElements; ++e) {
          const float value = random.for_index(j).normal(e);
          parts[j][e] = code.repetition() ? std::round(value * 1000) : value;
          wanted[e] += static_cast<double>(parts[j][e]);
        }
      std::vector<std::vector<float>> replies(static_cast<size_t>(n), std::vector<float>(kElements));
      for (int i = 0; i < n; ++i)
        for (size_t k = 0; k < code.parts(i).size(); ++k)
          for (size_t e = 0; e < kElements; ++e)
            replies[static_cast<size_t>(i)][e] +=
                static_cast<float>(code.coefficients(i)[k]) * parts[static_cast<size_t>(code.parts(i)[k])][e];
      double scale = 0, worst = 0;
      for (const double one : wanted) scale = std::max(scale, std::abs(one));
      std::vector<char> live(static_cast<size_t>(n), 1);
      std::fill(live.begin(), live.begin() + s, 0);
      do {
        const sync::Decoding found = code.decode(live);
        for (size_t e = 0; e < kElements; ++e) {
          double sum = found.weights.empty() ? NAN : 0, terms = 0;
          for (size_t i = 0; i < found.weights.size(); ++i) {
            sum += found.weights[i] * static_cast<double>(replies[i][e]);
            for (size_t k = 0; k < code.coefficients(static_cast<int>(i)).size(); ++k)
              terms += std::abs(found.weights[i] * code.coefficients(static_cast<int>(i))[k] *
                                static_cast<double>(parts[static_cast<size_t>(code.parts(static_cast<int>(i))[k])][e]));
          }
          const double difference = std::isnan(sum) ? INFINITY : std::abs(sum - wanted[e]);
          worst = std::max(worst, difference / scale);
          to_bound = std::max(to_bound, difference / ((s + 3) * kHalfUlp * terms + 1e-12 * scale));
        }
        ++sets;
      } while (std::next_permutation(live.begin(), live.end()));
      if (!code.repetition()) log.info("random code, {} workers, {} late: largest error {:.1e}", n, s, worst);
      if (code.repetition()) repetition_error = std::max(repetition_error, worst);
      if (!code.repetition() && n <= 8) few_error = std::max(few_error, worst);
    }
  findings.at_least("1. sets of n - s live workers tried (all of them; n = 5, 8 with all s, n = 16 with s below 5)", 0, sets, 2500);
  findings.at_most("1. random code, fp32, up to 8 workers, every s: largest error of a decoded gradient, relative to its largest element",
                   0, few_error, 1e-5);
  // With 16 workers fp32 replies do not carry enough digits for 1e-5: the log has the errors.
  findings.at_most("1. random code, fp32, up to 16 workers: largest error, relative to what rounding the replies may do", 1, to_bound, 1);
  findings.at_most("1. repetition code on integers: likewise", 0, repetition_error, 0);
}

// What workers and master do in a round, without messages. Gradients are integers that depend on job and chunk.
class Imitation {
 public:
  Imitation(const federate::Scheme& scheme, uint64_t seed) : scheme_(scheme), random_(seed), own_(static_cast<size_t>(scheme.workers())) {}

  void round(const std::vector<federate::Task>& tasks, const federate::Workers& late) {
    for (size_t i = 0; i < tasks.size(); ++i) {
      for (const federate::Slot& slot : tasks[i]) {
        float sum = 0;
        for (size_t k = 0; k < slot.chunks.size(); ++k) sum += static_cast<float>(slot.weights[k]) * gradient(slot.job, slot.chunks[k]);
        if (slot.group != federate::Slot::kAlone) {
          if (!late[i]) master_.add_coded(slot.job, slot.group, static_cast<int>(i), {sum});
          continue;
        }
        own_[i].add(slot.job, {sum});
        if (slot.completes && !late[i]) master_.add_own_sum(slot.job, own_[i].total(slot.job));
      }
      own_[i].settle(!late[i]);
    }
  }
  double error(const federate::JobDecoding& how) {
    double wanted = 0;
    for (size_t c = 0; c < scheme_.chunks().size(); ++c) wanted += static_cast<double>(gradient(how.job, static_cast<int>(c)));
    return std::abs(static_cast<double>(master_.decode(how).gradient.front()) - wanted) /
           (1000.0 * static_cast<double>(scheme_.chunks().size()));
  }

 private:
  float gradient(int64_t job, int chunk) const {
    return static_cast<float>(random_.for_index(static_cast<uint64_t>(job)).below(static_cast<uint64_t>(chunk), 2001)) - 1000;
  }
  const federate::Scheme& scheme_;
  base::Random random_;
  std::vector<federate::OwnSums> own_;
  federate::JobGradients master_;
};

// 1. M-SGC with random (B, W, lambda) under random bursts; a set that the scheme cannot do without is waited for.
void patterns(const ProofOptions& options, Findings& findings) {
  constexpr uint64_t kPatterns = 10000;
  double error = 0, undecoded = 0, late_replies = 0;
  federate::CodeCache cache;
  for (uint64_t pattern = 0; pattern < kPatterns; ++pattern) {
    const base::Random random = base::Random(options.seed).for_purpose("pattern").for_index(pattern);
    const int n = 1 + static_cast<int>(random.below(0, 10)), b = 1 + static_cast<int>(random.below(1, 3)),
              w = b + 1 + static_cast<int>(random.below(2, 3)), lambda = static_cast<int>(random.below(3, static_cast<uint64_t>(n) + 1));
    const auto scheme =
        federate::make_scheme({.kind = SchemeKind::msgc, .b = b, .w = w, .lambda = lambda}, n, 5, CodeKind::automatic, 1, &cache);
    Imitation imitation(*scheme, pattern);
    std::vector<sync::StragglerChain> chains;
    for (int i = 0; i < n; ++i) chains.emplace_back(sync::StragglerOptions{0.25, 0.4, 1}, options.seed + pattern, i);
    int decoded = 0;
    for (int64_t round = 0; round < scheme->rounds(); ++round) {
      const std::vector<federate::Task> tasks = scheme->tasks(round);
      federate::Workers late;
      for (sync::StragglerChain& chain : chains) late.push_back(chain.next());
      for (size_t i = 0; i < late.size() && !scheme->conforms(late); ++i) late[i] = 0;
      late_replies += static_cast<double>(std::count(late.begin(), late.end(), 1));
      imitation.round(tasks, late);
      scheme->close(late);
      federate::JobDecoding job;
      if (!scheme->completed(job)) continue;
      ++decoded;
      error = std::max(error, imitation.error(job));
    }
    undecoded += 5 - decoded;
  }
  findings.at_most("1. M-SGC, random (B, W, lambda), 10,000 random bursty patterns: jobs that were not decoded", 0, undecoded, 0);
  findings.at_least("1. likewise: late replies in all", 0, late_replies, 10000);
  findings.at_most("1. likewise: largest error of a decoded gradient, per chunk", 0, error, 1e-5);
}

std::vector<double> losses_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run(
           [&](comm::World& world) { train::run(world, recipe, {.out = out, .cache = {}, .terminal = nullptr}, {}, base::Stop()); }))
    if (error) std::rethrow_exception(error);
  std::vector<double> losses;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) losses.push_back(row.number("loss"));
  return losses;
}

// 1. The step of the trainer, with ranks that are late, beside plain data parallelism.
void step(const ProofOptions& options, Findings& findings) {
  const std::filesystem::path folder(options.scratch);
  const base::Recipe plain = with(small_decoder(options, {"model.layers=1", "model.embed=16", "model.heads=2", "model.mlp=24"}),
                                  {"train.steps=8", "train.global_batch=11", "snapshot.last=false"});
  const std::vector<double> losses = losses_on(1, plain, folder / "plain");
  double worst = 0, late = 0;
  for (const auto& [ranks, stragglers] : {std::pair(4, 1), std::pair(5, 2), std::pair(7, 3)}) {
    const std::filesystem::path out = folder / fmt::format("coded-{}", ranks);
    const std::vector<double> coded = losses_on(ranks,
                                                with(plain, {"train.method=coded", fmt::format("train.coded.stragglers={}", stragglers),
                                                             "train.coded.slow_enter=0.3", "train.coded.slow_s=60"}),
                                                out);
    for (size_t i = 0; i < losses.size(); ++i) worst = std::max(worst, std::abs(coded.at(i) - losses[i]));
    for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) late += row.number("coded_late");
  }
  findings.at_least("1. train.method = coded, 4, 5 and 7 ranks: ranks that gave up, over 24 steps", 0, late, 12);
  findings.at_most("1. likewise: largest difference of a loss to one rank without coding", 0, worst, 1e-5);
}

// Who is slow when: the chains that workers of a live study have.
WorkerSeconds chains(uint64_t seed, int n, double enter, double leave, double base_s, double load_s, double delay_s) {
  std::vector<std::vector<char>> slow(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    sync::StragglerChain chain({enter, leave, delay_s}, seed, i);
    for (int round = 0; round < 600; ++round) slow[static_cast<size_t>(i)].push_back(chain.next());
  }
  return [=](int64_t round, int worker, double load) {
    return base_s + load_s * load + (slow[static_cast<size_t>(worker)][static_cast<size_t>(round)] ? delay_s : 0);
  };
}

double best_of(const std::vector<federate::Choice>& all, SchemeKind kind, SchemeSpec* spec = nullptr) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const federate::Choice& one) { return one.spec.kind == kind; });
  if (spec) *spec = found->spec;
  return found->seconds;
}

// The pilot's table, in virtual time: 200 jobs, T <= 6, mu = 0.6.
void pilot(const ProofOptions& options, Findings& findings, base::Log& log) {
  struct Row {
    int n;
    double enter, leave, gc, msgc, srsgc;  // the sheet's seconds
  };
  federate::CodeCache cache;
  const int draws = options.full ? 3 : 1;
  for (const Row& row :
       {Row{8, .05, .9, 557, 474, 515}, Row{8, .05, .5, 671, 605, 600}, Row{16, .05, .9, 513, 424, 444}, Row{16, .02, .9, 398, 353, 369}}) {
    if (row.n == 16 && row.enter == .02 && !options.full) {
      findings.skip("pilot, 16 workers, p = 0.02, q = 0.9", "a minute on this machine: --full");
      continue;
    }
    std::map<SchemeKind, double> seconds;
    std::string best;
    for (int draw = 0; draw < draws; ++draw) {
      const ChooseOptions choose{.workers = row.n, .jobs = 200, .delay_max = 6, .mu = 0.6, .codes = &cache};
      const auto all =
          federate::rank_parameters(choose, chains(options.seed * 10 + static_cast<uint64_t>(draw), row.n, row.enter, row.leave, 1, 4, 4));
      SchemeSpec spec;
      for (const SchemeKind kind : choose.kinds) seconds[kind] += best_of(all, kind, &spec) / draws;
      best = spec.text();
    }
    log.info("{} workers, p {}, q {}: none {:.0f}, gc {:.0f}, srsgc {:.0f}, msgc {:.0f} s {}", row.n, row.enter, row.leave,
             seconds[SchemeKind::none], seconds[SchemeKind::gc], seconds[SchemeKind::srsgc], seconds[SchemeKind::msgc], best);
    const std::string where = fmt::format("pilot, {} workers, p = {}, q = {}, virtual time: ", row.n, row.enter, row.leave);
    findings.at_most(where + "M-SGC to GC (the sheet's ratio and 0.05)", row.msgc / row.gc,
                     seconds[SchemeKind::msgc] / seconds[SchemeKind::gc], row.msgc / row.gc + 0.05);
    findings.at_most(where + "SR-SGC to GC (the sheet's ratio and 0.05)", row.srsgc / row.gc,
                     seconds[SchemeKind::srsgc] / seconds[SchemeKind::gc], row.srsgc / row.gc + 0.05);
  }
}

// The loads of the paper for 256 workers.
void loads(Findings& findings) {
  const auto differs = [&](const char* name, const SchemeSpec& spec, double paper) {
    findings.at_most(fmt::format("2. load of {} for 256 workers: difference to the paper's", name), paper,
                     std::abs(federate::load_of(spec, 256) - paper), 0.5 * std::pow(10.0, std::floor(std::log10(paper)) - 1));
  };
  differs("M-SGC(1,2,27)", {.kind = SchemeKind::msgc, .b = 1, .w = 2, .lambda = 27}, 0.0075);
  differs("SR-SGC(2,3,23)", {.kind = SchemeKind::srsgc, .b = 2, .w = 3, .lambda = 23}, 0.051);
  differs("GC(15)", {.kind = SchemeKind::gc, .s = 15}, 0.0625);
  differs("no coding", {}, 0.0039);
}

// Live studies: a master, 8 workers, 4 tiny models; workers pause as the pilot's do, at a quarter of its seconds, so that computing, which
// takes a few hundredths of a second here, does not decide.
class Live {
 public:
  static constexpr int kWorkers = 8, kStreams = 4, kSteps = 12, kBatch = 264;
  static constexpr double kBase = 0.25, kLoad = 1, kDelay = 1, kEnter = 0.05, kLeave = 0.9, kMu = 0.6;

  explicit Live(const ProofOptions& options) : options_(options), folder_(options.scratch) {
    base::write_atomically(folder_ / "live.toml",
                           fmt::format(R"(
[study]
kind = "coded"
workers = {}
streams = {}
mu = {}
[study.stragglers]
delay_s = {}
base_s = {}
load_s = {}
leave = {}
[model]
layers = 1
embed = 8
heads = 2
mlp = 16
[data]
tokenizer = "bytes"
length = 8
stories_bytes = 50000
[train]
steps = {}
global_batch = {}
seed = {}
[eval]
samples = 20
[log]
samples = 0
)",
                                       kWorkers, kStreams, kMu, kDelay, kBase, kLoad, kLeave, kSteps, kBatch, options.seed));
  }

  base::Json run(const std::string& name, const Assignments& sets) const {
    std::vector<std::string> command{options_.program, "study", "coded", (folder_ / "live.toml").string(), "--out", out(name).string()};
    for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
    const ProcessResult ended = run_program_for(std::chrono::duration<double>(kRunLimitS), command, out(name).string() + ".log");
    if (ended.exit_code != 0)
      throw Error(Error::Kind::broken_invariant, fmt::format("{} ended with exit code {}: {}", name, ended.exit_code, ended.output));
    return base::parse_json(base::read_file(out(name) / "results.json", kResultBytesMax));
  }
  std::filesystem::path out(const std::string& name) const { return folder_ / name; }
  WorkerSeconds seconds(double enter = kEnter) const { return chains(options_.seed, kWorkers, enter, kLeave, kBase, kLoad, kDelay); }
  static Assignments given(const SchemeSpec& spec) {
    return {fmt::format("study.scheme={}", federate::name_of(spec.kind)),
            "study.params=given",
            fmt::format("study.s={}", spec.s),
            fmt::format("study.b={}", spec.b),
            fmt::format("study.w={}", spec.w),
            fmt::format("study.lambda={}", spec.lambda)};
  }

 private:
  const ProofOptions& options_;
  std::filesystem::path folder_;
};

Assignments plus(Assignments sets, const std::string& more) {
  sets.push_back(more);
  return sets;
}

double largest_loss_difference(const base::Json& a, const base::Json& b) {
  double most = 0;
  for (size_t stream = 0; stream < a["losses"].size(); ++stream) {
    const auto one = a["losses"][stream].get<std::vector<double>>(), other = b["losses"].at(stream).get<std::vector<double>>();
    if (one.size() != other.size()) return INFINITY;
    most = std::max(most, std::abs(one.back() - other.back()));
  }
  return most;
}

// 2. M-SGC with lambda = n leaves the slots for repetition empty where nothing is missing; another one uses all.
void load_accounting(const Live& study, std::map<SchemeKind, SchemeSpec> best, int64_t batch, Findings& findings) {
  const SchemeSpec full{.kind = SchemeKind::msgc, .b = 1, .w = 3, .lambda = 3};
  const auto units = federate::make_scheme(full, Live::kWorkers, 1, CodeKind::automatic, 1)->units();
  study.run("loads", plus(plus(Live::given(full), "train.steps=4"), fmt::format("train.global_batch={}", 4 * units)));
  double above = 0, differs = 0, tasks = 0;
  const auto look = [&](const std::string& name, const SchemeSpec& spec, int64_t samples_of_batch) {
    const std::vector<base::MetricsRow> rows = base::read_metrics(study.out(name) / "rounds.jsonl");
    for (const base::MetricsRow& row : rows) {
      const int64_t round = row.integer("round"), delay = spec.delay();
      if (round < delay || round + delay >= static_cast<int64_t>(rows.size())) continue;  // the first and last jobs leave slots empty
      for (const auto& [key, value] : row.values) {
        if (key != "samples") continue;
        for (const double samples : std::get<std::vector<double>>(value)) {
          if (samples < 0) continue;
          const double more = samples - row.number("load") * static_cast<double>(samples_of_batch);
          above = std::max(above, more);
          if (spec.kind != SchemeKind::msgc || spec.lambda < Live::kWorkers) differs = std::max(differs, std::abs(more));
          ++tasks;
        }
      }
    }
  };
  for (const SchemeKind kind : {SchemeKind::none, SchemeKind::gc, SchemeKind::msgc}) look(federate::name_of(kind), best[kind], batch);
  look("loads", full, 4 * units);
  findings.at_least("2. live tasks whose samples were counted", 0, tasks, 1000);
  findings.at_most("2. samples of a worker in a round, less load times batch: most, all schemes", 0, above, 1);
  findings.at_most("2. likewise, largest difference; schemes that leave no slot empty: none, GC, M-SGC(1,3,3)", 0, differs, 1);
}

// 2, 3.
void live(const Live& study, Findings& findings, base::Log& log) {
  const std::string enter = fmt::format("study.stragglers.enter={}", Live::kEnter);
  const auto all = federate::rank_parameters(
      {.workers = Live::kWorkers, .jobs = int64_t{Live::kStreams} * Live::kSteps, .delay_max = Live::kStreams - 1, .mu = Live::kMu},
      study.seconds());
  std::map<SchemeKind, SchemeSpec> best;
  for (const SchemeKind kind : {SchemeKind::none, SchemeKind::gc, SchemeKind::srsgc, SchemeKind::msgc}) {
    const double seconds = best_of(all, kind, &best[kind]);
    log.info("{}: {:.1f} s in virtual time", best[kind].text(), seconds);
  }
  findings.at_most("3. 8 workers, 48 jobs, virtual time: M-SGC to the best gradient code", best_of(all, SchemeKind::gc),
                   best_of(all, SchemeKind::msgc) / best_of(all, SchemeKind::gc), 0.92);
  findings.at_most("3. likewise, to waiting for all", best_of(all, SchemeKind::none),
                   best_of(all, SchemeKind::msgc) / best_of(all, SchemeKind::none), 0.85);
  // A batch that all chunks divide, so that loads can be compared to the sample.
  const int64_t units = federate::make_scheme(best[SchemeKind::msgc], Live::kWorkers, 1, CodeKind::automatic, 1)->units();
  const int64_t batch = (Live::kBatch + units - 1) / units * units;
  std::map<SchemeKind, base::Json> results;
  for (const SchemeKind kind : {SchemeKind::none, SchemeKind::gc, SchemeKind::msgc}) {
    results[kind] =
        study.run(federate::name_of(kind), plus(plus(Live::given(best[kind]), enter), fmt::format("train.global_batch={}", batch)));
    log.info("{}: {:.1f} s live", best[kind].text(), results[kind]["seconds"].get<double>());
  }
  const auto took = [&](SchemeKind kind) { return results[kind]["seconds"].get<double>(); };
  findings.at_most(fmt::format("3. live, 8 worker processes, 4 models in turn: {} to the best gradient code, {}",
                               best[SchemeKind::msgc].text(), best[SchemeKind::gc].text()),
                   took(SchemeKind::gc), took(SchemeKind::msgc) / took(SchemeKind::gc), 0.92);
  findings.at_most("3. likewise, to waiting for all", took(SchemeKind::none), took(SchemeKind::msgc) / took(SchemeKind::none), 0.85);
  for (const SchemeKind kind : {SchemeKind::gc, SchemeKind::msgc})
    findings.at_most(fmt::format("3. largest difference of a final loss to waiting for all, {}", federate::name_of(kind)), 0,
                     largest_loss_difference(results[SchemeKind::none], results[kind]), 1e-4);
  load_accounting(study, best, batch, findings);
}

// 4. Far more stragglers than a code tolerates.
void wait_out(const Live& study, Findings& findings) {
  const Assignments few{"train.steps=4", "study.stragglers.enter=0.5", "study.stragglers.leave=0.5"};
  Assignments plain = Live::given({}), coded = Live::given({.kind = SchemeKind::gc, .s = 1});
  plain.insert(plain.end(), few.begin(), few.end());
  coded.insert(coded.end(), few.begin(), few.end());
  const base::Json waits = study.run("wait-none", plain), code = study.run("wait-gc", coded);
  double waited = 0;
  for (const base::MetricsRow& row : base::read_metrics(study.out("wait-gc") / "rounds.jsonl")) waited += row.number("waited");
  findings.at_least("4. half of the workers slow, GC(1): rounds of 16 that waited behind the cut-off", 0, waited, 12);
  findings.at_most("4. likewise: largest difference of a final loss to waiting for all", 0, largest_loss_difference(waits, code), 1e-4);
}

// 5. Live: a probe, a choice, and what the same rounds would have taken with every other choice.
void planner(const Live& study, Findings& findings, base::Log& log) {
  const base::Json result = study.run(
      "auto", {"study.scheme=msgc", "study.params=auto", "study.probe_rounds=24", fmt::format("study.stragglers.enter={}", Live::kEnter)});
  const int64_t left = int64_t{Live::kStreams} * Live::kSteps - result["probe_jobs"].get<int64_t>(),
                first = result["probe_jobs"].get<int64_t>();
  const WorkerSeconds seconds = study.seconds();
  const auto later = [&](int64_t round, int worker, double load) { return seconds(round + first, worker, load); };
  const auto all = federate::rank_parameters(
      {.kinds = {SchemeKind::msgc}, .workers = Live::kWorkers, .jobs = left, .delay_max = Live::kStreams - 1, .mu = Live::kMu}, later);
  const std::string chosen = result["scheme"].get<std::string>();
  const auto own = std::find_if(all.begin(), all.end(), [&](const federate::Choice& one) { return one.spec.text() == chosen; });
  log.info("chosen: {} ({:.1f} s); best: {} ({:.1f} s)", chosen, own->seconds, all.front().spec.text(), all.front().seconds);
  findings.at_most(
      fmt::format("5. {}, chosen live after 24 rounds: time of the other {} jobs to that of the best parameters", chosen, left),
      all.front().seconds, own->seconds / all.front().seconds, 1.05);
  const double took = result["seconds"].get<double>() - result["probe_seconds"].get<double>();
  findings.at_most("5. likewise, as it took live", all.front().seconds, took / all.front().seconds, 1.2);
}

}  // namespace

void prove_gradient_coding(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("codes, patterns and the step");
  codes(options, findings, log);
  patterns(options, findings);
  step(options, findings);
  loads(findings);
  log.info("virtual time");
  pilot(options, findings, log);
  log.info("live");
  const Live study(options);
  live(study, findings, log);
  wait_out(study, findings);
  planner(study, findings, log);
}

}  // namespace cairn::study
