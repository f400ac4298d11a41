#pragma once
#include <functional>
#include <optional>
#include <string>

namespace cairn::cli {

// Reads an environment variable, or a table in tests. Returns nothing for a variable that is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

// This process's place among ranks that torchrun, srun or mpirun started.
struct Launch {
  enum class By { torchrun, slurm, mpirun };
  By by = By::torchrun;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;          // among the ranks on this machine
  std::optional<std::string> rendezvous = {};  // host:port of rank 0's machine; none: one machine, or unknown
  std::string job = {};                        // identifies this job among all jobs on this machine
  bool operator==(const Launch&) const = default;
};

// Reads the variables of Open MPI's mpirun, torchrun or Slurm's srun; the first launcher found wins. Returns nothing if the process was
// started by hand. Refuses values that make no sense, naming the variable.
std::optional<Launch> detect_launch(const Variables& variable);

// This machine's place among those of a job with one process per machine.
struct NodePlace {
  int node_rank = 0, nnodes = 1;
  std::optional<std::string> rendezvous = {};  // host:port of the first machine; none if there is only one
  bool operator==(const NodePlace&) const = default;
};

// For a process that starts its machine's ranks itself (`srun --ntasks-per-node=1 cairn train --nproc 8`). Returns nothing outside a
// Slurm step. Refuses several tasks on one node, since each would start all ranks.
std::optional<NodePlace> detect_node(const Variables& variable);

}  // namespace cairn::cli
