#pragma once
#include <functional>
#include <optional>
#include <string>

namespace cairn::cli {

// The environment, or a table in its place: the value of a variable, none where it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

// This process's place among the ranks that somebody else's launcher started.
struct Launch {
  enum class By { torchrun, slurm, mpirun };
  By by = By::torchrun;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;          // among the ranks that were started together on this machine
  std::optional<std::string> rendezvous = {};  // host:port where rank 0's machine can be met; none: all on one machine, or not told
  std::string job = {};                        // the same for all ranks of this job on this machine, and for no other job
  bool operator==(const Launch&) const = default;
};

// What the variables of Open MPI's mpirun, torchrun or Slurm's srun say, the first of them that is there; none where this process was
// started by hand. Values that make no sense are refused, named.
std::optional<Launch> detect_launch(const Variables& variable);

// This machine's place among those on which srun started one process each.
struct NodePlace {
  int node_rank = 0, nnodes = 1;
  std::optional<std::string> rendezvous = {};  // host:port of the first machine; none where there is only one
  bool operator==(const NodePlace&) const = default;
};

// For a process that starts the ranks of its machine itself (`srun --ntasks-per-node=1 cairn train --nproc 8`). None outside a step of
// Slurm; several tasks on one node are refused, since each would start all ranks.
std::optional<NodePlace> detect_node(const Variables& variable);

}  // namespace cairn::cli
