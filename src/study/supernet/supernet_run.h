// Networks out of a trained supernet: `cairn supernet export` cuts one out, `cairn supernet search` finds good ones.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/supernet/elastic_shape.h"
#include "train/settings.h"
#include "train/supernet/subnet_space.h"

namespace cairn::base {
class Log;
}
namespace cairn::comm {
class World;
}
namespace cairn::train {
struct Job;
}

namespace cairn::study {

// Where the supernet is.
struct SupernetRun {
  std::filesystem::path run;           // the directory of a run
  std::vector<std::string> sets = {};  // recipe keys to change: where the data is now
  std::filesystem::path cache = {};    // of tokenized text; empty: none
  int threads = 1;
  std::string device = "cpu";
};

// The settings of the run.
train::Settings supernet_settings(const SupernetRun& from);

// The run with the weights of its newest snapshot, on one rank; nothing is written into its directory. Refuses a run without a [supernet].
std::unique_ptr<train::Job> open_supernet(comm::World& world, const SupernetRun& from);

// One network, measured.
struct MeasuredSubnet {
  model::Subnet subnet;
  double flops = 0;  // of a forward pass, for one sample or token
  double loss = 0;
  double accuracy = 0;  // NaN: of no classifier
};

struct SearchOptions {
  double flops_max = 0;  // 0: no bound
  int64_t population = 24, generations = 8;
  double mutation = 0.1;               // of each choice
  double parents = 0.25;               // of a generation
  int64_t calibration_samples = 1000;  // for each network
  uint64_t seed = 1;
};

// Evolutionary search with direct evaluation: the best quarter of a generation has children, by mutation and by crossing. Every network is
// measured once, on the held-out samples of the run. Returns all of them, best first among those within the bound.
std::vector<MeasuredSubnet> search_subnets(train::Job& job, const SearchOptions& options, base::Log& log);

// Those that no other network beats in both FLOPs and loss, by FLOPs.
std::vector<MeasuredSubnet> pareto_front(std::vector<MeasuredSubnet> measured);

std::string to_table(const std::vector<MeasuredSubnet>& measured, const model::ElasticShape& shape);
std::string to_json(const std::vector<MeasuredSubnet>& measured, const model::ElasticShape& shape);

// Writes the subnet ("2,3:64,32,...": format_subnet) into a new directory. A decoder or a transformer of pictures becomes an ordinary
// Hugging Face directory; a cnn gets config.json, its weights and the statistics of its batch norms, made anew from training samples.
// Returns what was written, in words.
std::string export_subnet(comm::World& world, const SupernetRun& from, const std::string& subnet, const std::string& out,
                          const std::string& dtype, base::Log& log);

}  // namespace cairn::study
