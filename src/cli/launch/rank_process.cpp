#include "cli/launch/rank_process.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cli/cause.h"
#include "cli/environment.h"
#include "cli/launch/launcher.h"
#include "cli/launch/links.h"
#include "cli/launch/rank_setups.h"
#include "cli/signals.h"
#include "cli/stderr_terminal.h"
#include "comm/local/local.h"
#include "comm/mpi/transport.h"
#include "comm/nccl/transport.h"
#include "comm/net/transport.h"
#include "train/agent.h"

namespace cairn::cli {
namespace {

using Connect = std::function<std::unique_ptr<comm::Transport>(const base::Stop&)>;

comm::WorldOptions quiet_world(int rank, const std::shared_ptr<base::Terminal>& terminal) {
  comm::WorldOptions options;
  options.log = base::Log({.rank = rank, .level = base::Level::warn, .terminal = terminal, .file = {}});
  return options;
}

int run_connected_rank(const RankCommand& command, int ranks_here, const Connect& connect) {
  const Signals signals;
  std::unique_ptr<comm::Transport> transport = connect(signals.stop());
  if (command.launch.transport == "nccl") transport = comm::make_nccl_transport(std::move(transport), 0);
  const int rank = transport->rank();
  comm::World world(std::move(transport), quiet_world(rank, stderr_terminal()));
  const RankContext context{ranks_here, threads_per_rank(ranks_here), signals.stop()};
  report_failure_to_peers(world, [&] { command.body(world, context); });
  return 0;
}

// This process is a rank that an agent started: its set-up is inherited as a file.
int run_inherited_rank(const RankCommand& command, int setup_fd) {
  comm::NetSetup setup = train::inherited_setup(setup_fd);
  const auto here = static_cast<int>(setup.neighbours().size());
  assign_gpu(command.device, command.launch.transport, std::stoi(*variable("CAIRN_LOCAL_RANK")), here);
  return run_connected_rank(command, here, [&](const base::Stop& stop) {
    return comm::make_net_transport(std::move(setup), net_options(command.launch, parse_links(command.launch.links), stop));
  });
}

// This process is a rank that torchrun, srun or mpirun started.
int run_rank_of(const Launch& launch, const RankCommand& command) {
  set_variable("CAIRN_RANK", std::to_string(launch.rank));
  set_variable("CAIRN_LOCAL_RANK", std::to_string(launch.local_rank));
  assign_gpu(command.device, command.launch.transport, launch.local_rank, launch.local_size);
  return run_connected_rank(command, launch.local_size, [&](const base::Stop& stop) -> std::unique_ptr<comm::Transport> {
    if (command.launch.transport == "mpi") return comm::make_mpi_transport();
    base::Terminal terminal;
    return comm::make_net_transport(join_launched(command.launch, launch, command.fingerprint, stop, terminal),
                                    net_options(command.launch, parse_links(command.launch.links), stop));
  });
}

// Ranks as threads of this process, on the virtual network.
int run_as_threads(const RankCommand& command) {
  const Signals signals;
  const std::shared_ptr<base::Terminal> terminal = stderr_terminal();
  const int ranks = command.launch.nproc;
  comm::LocalOptions options;
  if (const auto links = parse_links(command.launch.links)) options.link = *links;
  options.world = [&](int rank) { return quiet_world(rank, terminal); };
  rethrow_cause(comm::LocalNetwork(ranks, options).run([&](comm::World& world) {
    const RankContext context{ranks, threads_among(ranks), signals.stop()};
    report_failure_to_peers(world, [&] { command.body(world, context); });
  }));
  return 0;
}

}  // namespace

int threads_per_rank(int ranks_here) {
  const bool bound = processors() < static_cast<int>(std::thread::hardware_concurrency());
  return threads_among(bound ? 1 : ranks_here);
}

void assign_gpu(const std::string& device, const std::string& transport, int local_rank, int local_size) {
  if (device != "cuda") return;
  const auto gpus = static_cast<int>(visible_gpus().size());
  if (transport == "nccl" && local_size > std::max(gpus, 1))
    base::fail_input(
        "--transport nccl: {} ranks on this machine and {} GPU{}: each rank needs its own GPU. Start fewer ranks, or use --transport net",
        local_size, gpus, gpus == 1 ? "" : "s");
  select_gpu(local_rank);
}

void check_transport(const LaunchArguments& a, const std::string& device) {
  if (parse_links(a.links) && (a.transport == "mpi" || a.transport == "nccl"))
    base::fail_input("--links {}: the links of {} cannot be simulated: use --transport net or local", a.links, a.transport);
  if (a.transport == "nccl" && device != "cuda") base::fail_input("--transport nccl: it joins GPUs: add --device cuda");
}

int run_on_ranks(const RankCommand& command) {
  const LaunchArguments& a = command.launch;
  check_transport(a, command.device);
  if (const auto setup_fd = variable("CAIRN_SETUP_FD")) return run_inherited_rank(command, std::stoi(*setup_fd));
  const std::optional<Launch> launch = a.nproc_given || a.nnodes > 0 || a.transport == "local" ? std::nullopt : detect_launch(variable);
  if (launch) return run_rank_of(*launch, command);
  if (a.transport == "mpi") base::fail_input("--transport mpi: MPI starts its ranks itself: mpirun -n {} cairn ...", a.nproc);
  command.check();
  if (a.transport == "local") return run_as_threads(command);
  const Signals signals;
  const std::shared_ptr<base::Terminal> terminal = stderr_terminal();
  train::AgentOptions options{.setups = meet_and_set_up(a, node_place(a), command.fingerprint, signals.stop(), *terminal),
                              .argv = {own_program().string()},
                              .env = {},
                              .hold_stop = true};
  options.argv.insert(options.argv.end(), command.command_line.begin(), command.command_line.end());
  base::Log log({.rank = options.setups.front().rank, .level = base::Level::warn, .terminal = terminal, .file = {}});
  return train::run_ranks(options, log, signals.stop());
}

}  // namespace cairn::cli
