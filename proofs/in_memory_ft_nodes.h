// Nodes on one machine for proofs: each has a keeper, an agent and a rank that is a process of `cairn train`. The generations of ranks are
// started here, so that a proof decides who dies and who comes back.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "elastic/keeper.h"

namespace cairn::study {

class NodeRun {
 public:
  // `sets`: KEY=VALUE of the recipe. One keeper for each node, which keeps to the node's number over all generations.
  NodeRun(std::string program, std::filesystem::path folder, int nodes, std::vector<std::string> sets);

  // Runs the next generation with a rank on each of these nodes until all ranks have ended, and returns their exit codes. `watch` is called
  // again and again with the last step in the metrics and the seconds since the start.
  std::vector<int> run(const std::vector<int>& nodes, const std::function<void(int64_t step, double seconds)>& watch = {});

  // SIGKILL from outside, of the generation that runs.
  void kill_rank(int rank) const;
  void kill_node(int rank);  // its rank and its keeper
  void kill_keeper(int node);

  int64_t last_step() const;
  std::map<int64_t, double> losses() const;  // by step
  std::string log() const;                   // what all ranks have printed
  // The field of the last "restored" event; empty where there is none.
  std::string restored(const std::string& field) const;
  std::filesystem::path folder() const { return run_; }

  // Bytes of the memory of a node's keeper by name: "cairn-data", "cairn-parity".
  std::vector<int64_t> segments(int node, const std::string& name) const;
  // Flips a byte in all data buffers of a node's keeper.
  void flip_byte(int node, int64_t offset) const;

 private:
  std::string program_;
  std::filesystem::path run_, log_;
  std::vector<std::string> sets_;
  std::vector<elastic::KeeperHandle> keepers_;
  std::vector<int> nodes_;  // of the generation that runs, by rank
  int generation_ = 0;
};

}  // namespace cairn::study
