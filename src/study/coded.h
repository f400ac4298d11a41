// Coded training: several models are trained in turn by one master and workers that may be late (federate/coded_master.h).
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "federate/coded_master.h"
#include "study/coded_options.h"

namespace cairn::base {
class Log;
class Stop;
}  // namespace cairn::base
namespace cairn::comm {
class World;
}

namespace cairn::study {

// What a study found.
struct CodedResult {
  federate::MasterResult master;
  std::vector<std::vector<double>> losses;  // by stream and step
  std::vector<double> held_out;             // by stream
  double uncoded_seconds = 0;               // predicted for the same jobs without coding, by replaying the probe; 0: there was none
};

federate::SchemeSpec spec_of(const CodedStudyOptions& options);

// Runs a study: rank 0 of the world is the master, the others are workers. The master writes into `out`: rounds.jsonl, results.json, and a
// snapshot of every model below stream-N. The result is the master's; that of workers is empty.
CodedResult run_coded(comm::World& world, const CodedRecipe& recipe, const std::filesystem::path& out, const std::string& cache,
                      const base::Stop& stop, base::Log& log);

// Tables for people: the scheme, its times and losses, and the best parameters of every kind.
std::string to_tables(const CodedResult& result);

}  // namespace cairn::study
