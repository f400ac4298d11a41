// HDEE, Heterogeneous Domain Expert Ensemble: language models that are trained on one domain each, without communication, and combined by
// their probabilities.
//
// Experts may differ in size and steps: a hard domain gets a larger expert, or one that trains longer. All modes of a study cost the same,
//   sum over experts of 6 * N * tokens = budget        (N: matmul_parameters)
// so that a mode is better only if it spends compute better. Experts of different shape cannot be averaged, so the ensemble mixes what
// they predict, weighted by a posterior over experts j (evaluate/posterior.h):
//   p(x_t | x_<t) = sum_j p(j | x_<t) p_j(x_t | x_<t),     p(j | x_<t) ~ p(j) * prod_{s<t} p_j(x_s | x_<s)
// The prior p(j) of a domain is fitted on held-out text that is used for nothing else.
//
// A study runs in this order: seeds (one model per size), experts (chains of `cairn train`), scores, ensembles, report.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "study/domain_text.h"
#include "study/expert_jobs.h"
#include "study/expert_scores.h"
#include "study/hdee_options.h"
#include "study/hdee_plan.h"

namespace cairn::base {
class Log;
class Stop;
}  // namespace cairn::base

namespace cairn::study {

struct HdeeSetup {
  std::filesystem::path out;    // the study directory; a study that is there is resumed
  std::string program;          // the file of `cairn`
  std::filesystem::path cache;  // for tokenised text; empty: none
  int threads = 1;              // for reading and measuring
  bool dry_run = false;         // make the plan only
  std::function<void(const std::string& run, int64_t attempt, int pid)> on_start = {};  // called for every process
};

// A trained expert.
struct TrainedExpert {
  PlannedExpert plan;
  std::vector<std::filesystem::path> runs;  // one for each of its domains
  ExpertJobResult ended;
  int64_t parameters = 0, tokens = 0;      // read from its snapshots
  double flops = 0;                        // of these
  double loss_before = 0, loss_after = 0;  // on the held-out text of its domains; before: its seed's, NaN without a seed
  int64_t bytes_sent = 0;                  // from the ledgers of its runs
};

// The ensemble of one mode.
struct ModeResult {
  std::string mode;
  std::map<std::string, DomainResult> domains;            // the mixture included
  std::vector<std::map<std::string, double>> iterations;  // losses after each domain of the lines
};

struct HdeeResult {
  HdeePlan plan;
  std::vector<std::string> lines;                               // experts of an ensemble, in order
  std::map<std::string, double> difficulty;                     // by line, where it was measured
  std::map<std::string, TrainedExpert> experts;                 // by id
  std::map<std::string, std::map<std::string, double>> single;  // losses by id and domain, the mixture included
  std::vector<ModeResult> modes;
};

// Trains and measures a study. Writes into `out`: study.json, tokenizer.json, training.toml, seeds/SIZE,
// experts/LINE-SIZE-STEPS/N-DOMAIN (run directories), ensembles/MODE/ensemble.json, results.json, report.html.
HdeeResult run_hdee(HdeeRecipe recipe, const HdeeSetup& setup, base::Log& log, const base::Stop& stop);

}  // namespace cairn::study
