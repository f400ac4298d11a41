// A study of domain experts: seeds, lines of experts at one total of compute, ensembles of them, and what came of it.
//
// After HDEE (Heterogeneous Domain Expert Ensemble): experts that never communicate, larger or trained longer where a domain is hard, and
// combined in what they say, since experts of different shape cannot be averaged.
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
  std::filesystem::path out;    // everything goes there; what is there already is continued
  std::string program;          // Cairn itself
  std::filesystem::path cache;  // of tokenised text; empty: nothing is kept
  int threads = 1;              // for reading and measuring
  bool dry_run = false;         // only the plan
  std::function<void(const std::string& run, int64_t attempt, int pid)> on_start = {};  // hears of every process
};

// One expert as it was trained.
struct TrainedExpert {
  PlannedExpert plan;
  std::vector<std::filesystem::path> runs;  // one for each of its domains
  ExpertJobResult ended;
  int64_t parameters = 0, tokens = 0;      // read off its snapshots
  double flops = 0;                        // of these
  double loss_before = 0, loss_after = 0;  // on the held-out text of its domains; before: of its seed, not a number where there is none
  int64_t bytes_sent = 0;                  // by its runs' ledgers
};

// The ensemble of a mode after so many domains of each line.
struct ModeResult {
  std::string mode;
  std::map<std::string, DomainResult> domains;            // the mixture too
  std::vector<std::map<std::string, double>> iterations;  // losses after each domain, the last among them
};

struct HdeeResult {
  HdeePlan plan;
  std::vector<std::string> lines;                               // experts of an ensemble, in order
  std::map<std::string, double> difficulty;                     // by line, where it was measured
  std::map<std::string, TrainedExpert> experts;                 // by id
  std::map<std::string, std::map<std::string, double>> single;  // losses by id and domain, the mixture too
  std::vector<ModeResult> modes;
};

// Trains what the recipe says and measures it. Leaves in `out`: study.json, tokenizer.json, training.toml, seeds/SIZE,
// experts/LINE-SIZE-STEPS/N-DOMAIN (run directories), ensembles/MODE/ensemble.json, results.json, report.html.
HdeeResult run_hdee(HdeeRecipe recipe, const HdeeSetup& setup, base::Log& log, const base::Stop& stop);

}  // namespace cairn::study
