#include "cli/launch/restarting_agents.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <poll.h>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/environment.h"
#include "cli/launch/rank_setups.h"
#include "cli/signals.h"
#include "comm/net/listen.h"
#include "comm/net/transport.h"
#include "snapshot/run_lock.h"
#include "train/agent_group.h"

namespace cairn::cli {
namespace {

constexpr auto kHoldLimit = std::chrono::seconds(15);  // for the machine that held the run directory before to let it go
constexpr int kPauseMs = 50;

train::AgentOptions agent_options(const RestartingRun& run) {
  train::AgentOptions options{.setups = {}, .argv = {own_program().string()}, .env = {}, .hold_stop = true, .diagnosis = run.diagnosis};
  options.argv.insert(options.argv.end(), run.command_line.begin(), run.command_line.end());
  options.env.emplace_back("CAIRN_AGENT_SECONDS", fmt::format("{:.3f}", base::process_age()));
  return options;
}

// Takes the directory of a run in progress.
std::unique_ptr<snapshot::RunLock> hold(const std::filesystem::path& run, const base::Stop& stop) {
  const base::RealClock clock;
  while (true) {
    try {
      return std::make_unique<snapshot::RunLock>(run);
    } catch (const Error&) {
      if (clock.now() > kHoldLimit || stop.requested()) throw;
    }
    ::poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace

elastic::KeeperHandle give_keeper(train::AgentOptions& options, const std::string& address, base::Log& log) {
  elastic::KeeperHandle keeper = elastic::start_keeper(
      {.argv = {own_program().string(), "keeper"}, .address = address, .tell = [&log](const std::string& line) { log.warn("{}", line); }});
  options.inherited_fds.push_back(keeper.fd());
  options.env.emplace_back(elastic::kKeeperFdVariable, std::to_string(keeper.fd()));
  return keeper;
}

int run_lone_agent(const RestartingRun& run, const ClaimedRun& claimed) {
  const Signals signals;
  auto terminal = std::make_shared<base::Terminal>();
  run.show_header(claimed.run, run.launch.nproc);
  claimed.lock->let_children_inherit();
  base::Log log({.rank = 0, .terminal = terminal, .file = {}});
  train::AgentOptions options = agent_options(run);
  const elastic::KeeperHandle keeper = give_keeper(options, "127.0.0.1", log);
  const std::unique_ptr<train::GenerationSource> machine =
      train::make_lone_machine({.policy = run.policy,
                                .run = claimed.run.path,
                                .resume = claimed.run.resume,
                                .make_setups = [&] { return comm::make_net_setups(run.launch.nproc); }},
                               log, signals.stop());
  return train::run_generations(*machine, options, log, signals.stop());
}

int run_group_agent(const RestartingRun& run, const GroupPlace& group) {
  if (!run.launch.interfaces.empty())
    base::fail_input(
        "--interfaces {}: with train.on_loss = {} ranks of several machines use one interface. Leave it out, or use "
        "train.on_loss = stop.",
        run.launch.interfaces, train::name_of(run.policy.on_loss));
  const Signals signals;
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.rank = 0, .terminal = terminal, .file = {}});
  std::unique_ptr<snapshot::RunLock> lock;
  train::AgentGroupOptions options;
  options.policy = run.policy;
  options.node = group.place.node_rank;
  options.nodes = group.place.nnodes;
  options.count = run.launch.nproc;
  options.key = shared_key(run.launch);
  options.endpoint = comm::parse_rendezvous_endpoint(group.place.rendezvous.value_or(""));
  options.address = run.launch.address;
  if (options.address.empty() && (options.endpoint.host == "0.0.0.0" || options.endpoint.host == "::"))
    base::fail_input("--rendezvous {}: with train.on_loss = {} the others must know this machine's address: add --address HOST",
                     *group.place.rendezvous, train::name_of(run.policy.on_loss));
  options.config_fingerprint = group.config_fingerprint;
  options.choose_run = [&](int ranks) -> train::GroupRun {
    ClaimedRun claimed = claim_run_directory(group.request);
    lock = std::move(claimed.lock);
    run.show_header(claimed.run, ranks);
    return {std::filesystem::absolute(claimed.run.path).lexically_normal(), claimed.run.resume};
  };
  options.hold_run = [&](const std::filesystem::path& directory) {
    if (!lock) lock = hold(directory, signals.stop());
    lock->let_children_inherit();
  };
  options.release_run = [&] { lock.reset(); };
  options.check_layout = group.check_layout;
  options.tell = [&](const std::string& what) { terminal->line(what); };
  train::AgentOptions ranks = agent_options(run);
  const std::string address = comm::address_to_listen(options.endpoint.host, options.endpoint.port);
  const elastic::KeeperHandle keeper = give_keeper(ranks, address, log);
  const std::unique_ptr<train::GenerationSource> machine = train::join_agent_group(std::move(options), log, signals.stop());
  return train::run_generations(*machine, std::move(ranks), log, signals.stop());
}

}  // namespace cairn::cli
