// A command on ranks: starts them as processes or threads, or is one of them.
#pragma once
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "cli/arguments.h"
#include "comm/world.h"

namespace cairn::cli {

// Compute threads of a rank that a launcher started. One that binds its processes to cores has divided the cores already.
int threads_per_rank(int ranks_here);

// Chooses this rank's GPU where the device is cuda. Must run before CUDA starts. Refuses NCCL with several ranks on one GPU.
void assign_gpu(const std::string& device, const std::string& transport, int local_rank, int local_size);

// Refuses --links and --transport where they do not fit each other or the device.
void check_transport(const LaunchArguments& a, const std::string& device);

// Runs `act`; an exception is sent to the other ranks before it leaves this one.
template <typename Act>
auto report_failure_to_peers(comm::World& world, Act act) {
  try {
    return act();
  } catch (const std::exception& error) {
    world.fail(error);
    throw;
  }
}

// What a rank knows beside its world.
struct RankContext {
  int ranks_here = 1;  // ranks on this machine, itself included
  int threads = 1;     // compute threads
  const base::Stop& stop;
};

// A command whose ranks all run `body`.
struct RankCommand {
  LaunchArguments launch;  // nproc: the ranks of this machine
  std::string device;
  std::string fingerprint;                // the options that must be the same on all machines
  std::vector<std::string> command_line;  // for the processes that are started
  std::function<void()> check;            // refuses wrong input before anything is started
  std::function<void(comm::World&, const RankContext&)> body;
};

// Starts the ranks of this machine and waits for them, or runs the one that this process is: started by a `cairn` agent, or by torchrun,
// srun or mpirun. Returns the exit code.
int run_on_ranks(const RankCommand& command);

}  // namespace cairn::cli
