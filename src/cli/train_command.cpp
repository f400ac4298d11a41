// `cairn train`: decides where and on what a recipe runs, then runs it: as processes under an agent, or as threads of this one.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/run_directory.h"
#include "cli/signals.h"
#include "comm/local.h"
#include "comm/net.h"
#include "comm/world.h"
#include "train/agent.h"
#include "train/dry_run.h"
#include "train/settings.h"
#include "train/train.h"

namespace cairn::cli {
namespace {

constexpr int64_t kRankBytes = int64_t{150} << 20;  // a rank process before it holds anything
constexpr int64_t kThreadRankBytes = int64_t{64}
                                     << 20;  // a rank as a thread: its own data, parameters and optimizer state, of a small model

// The file, or a resumed run's own recipe where none is given, then what the command line adds, the later the stronger.
base::Recipe make_recipe(const TrainArguments& a, const RunDirectory& run) {
  base::Recipe recipe;
  if (!a.recipe.empty()) {
    recipe = base::Recipe::parse_file(a.recipe);
  } else if (run.resume) {
    recipe = base::Recipe::parse_file(run.path / "recipe.toml");
  }
  if (!a.data.empty()) recipe.set("data.path", a.data, "--data");
  if (a.seed >= 0) recipe.set("train.seed", a.seed, "--seed");
  for (const std::string& set : a.sets) recipe.set(set);
  return recipe;
}

std::string name_of(const TrainArguments& a) {
  if (!a.recipe.empty()) return std::filesystem::path(a.recipe).stem().string();
  if (!a.data.empty()) return std::filesystem::path(a.data).stem().string();
  return "stories";
}

// Refuses a rank count that this machine cannot hold, before anything is started.
void check_ranks(const TrainArguments& a) {
  const int64_t each = a.transport == "local" ? kThreadRankBytes : kRankBytes;
  const int64_t machine = base::machine_bytes(), fits = std::max<int64_t>(1, machine * 8 / 10 / each);
  if (a.nproc > fits)
    base::fail_input("--nproc {}: {} ranks need at least {} and this machine has {}; at most {} ranks fit here", a.nproc, a.nproc,
                     base::human_bytes(each * a.nproc), base::human_bytes(machine), fits);
}

void greet(const TrainArguments& a, const RunDirectory& run, base::Terminal& terminal) {
  terminal.line(fmt::format("{} {} on {} rank{} ({}); everything goes to {}", run.resume ? "resuming" : "training", name_of(a), a.nproc,
                            a.nproc == 1 ? "" : "s", a.device, run.path.string()));
}

void bid_farewell(const train::Result& result, const RunDirectory& run, base::Terminal& terminal) {
  terminal.line(fmt::format("report: {}", (run.path / "report.html").string()));
  if (result.stopped)
    terminal.line(fmt::format("stopped on request after step {}; continue with: cairn train --resume {}", result.step, run.path.string()));
}

// One rank's whole life. Its error is told to the others before it leaves.
train::Result run_rank(comm::World& world, const base::Recipe& recipe, const train::Start& start, const base::Stop& stop) {
  try {
    return train::run(world, recipe, start, {}, stop);
  } catch (const std::exception& error) {
    world.fail(error);
    throw;
  }
}

int run_process(const TrainArguments& a, const RunDirectory& run, train::Start start, comm::NetSetup setup) {
  const Signals signals;
  const bool first = setup.rank == 0;
  auto terminal = std::make_shared<base::Terminal>();
  if (first) start.terminal = terminal;
  comm::WorldOptions options;
  options.log = base::Log({.rank = setup.rank, .terminal = terminal, .file = {}});
  comm::World world(comm::make_net_transport(std::move(setup)), std::move(options));
  const train::Result result = run_rank(world, make_recipe(a, run), start, signals.stop());
  if (first) bid_farewell(result, run, *terminal);
  return 0;
}

// Ranks as threads of this process, on the virtual network.
int run_local(const TrainArguments& a, const RunDirectory& run, const train::Start& start) {
  const Signals signals;
  auto terminal = std::make_shared<base::Terminal>();
  comm::LocalOptions options;
  options.world = [&](int rank) {
    comm::WorldOptions world;
    world.log = base::Log({.rank = rank, .terminal = terminal, .file = {}});
    return world;
  };
  train::Result result;
  const auto ended = comm::LocalNetwork(a.nproc, options).run([&](comm::World& world) {
    train::Start own = start;
    if (world.rank() == 0) own.terminal = terminal;
    const train::Result mine = run_rank(world, make_recipe(a, run), own, signals.stop());
    if (world.rank() == 0) result = mine;
  });
  // The cause, not its echo on the ranks that lost a peer to it.
  std::exception_ptr echo;
  for (const std::exception_ptr& error : ended) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      if (e.kind() != Error::Kind::lost_peer) throw;
      echo = error;
    }
  }
  if (echo) std::rethrow_exception(echo);
  bid_farewell(result, run, *terminal);
  return 0;
}

int run_agent(const TrainArguments& a, const RunDirectory& run, const std::vector<std::string>& command_line) {
  const Signals signals;
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.terminal = terminal, .file = {}});
  train::AgentOptions options{.nproc = a.nproc, .argv = {own_program().string()}, .env = {}};
  options.argv.insert(options.argv.end(), command_line.begin(), command_line.end());
  // Decided here, so that all ranks decide alike.
  options.env = {{"CAIRN_RUN_DIR", run.path.string()},
                 {"CAIRN_RUN_RESUME", run.resume ? "1" : "0"},
                 {"CAIRN_AGENT_SECONDS", fmt::format("{:.3f}", base::process_age())}};
  return train::run_ranks(options, log, signals.stop());
}

}  // namespace

int train_command(const TrainArguments& a, const std::vector<std::string>& command_line) {
  const std::optional<std::string> setup_fd = variable("CAIRN_SETUP_FD");
  train::Start start{.out = {},
                     .resume = false,
                     .cache = cache_folder() / "data",
                     .device = a.device,
                     .threads = std::max(1, processors() / a.nproc),
                     .terminal = nullptr};
  if (setup_fd) {  // a rank that the agent started
    const RunDirectory run{*variable("CAIRN_RUN_DIR"), *variable("CAIRN_RUN_RESUME") == "1"};
    start.out = run.path;
    start.resume = run.resume;
    start.seconds_before = std::stod(*variable("CAIRN_AGENT_SECONDS"));
    return run_process(a, run, start, train::inherited_setup(std::stoi(*setup_fd)));
  }
  check_ranks(a);
  const RunDirectory run = choose_run_directory(a.out, a.resume, name_of(a));
  start.out = run.path;
  start.resume = run.resume;
  base::Recipe recipe = make_recipe(a, run);
  base::Terminal terminal;
  if (a.dry_run) {
    terminal.line(train::dry_run(recipe, start, a.nproc));
    return 0;
  }
  train::check_recipe(recipe, a.nproc);  // once here, before any rank starts
  greet(a, run, terminal);
  if (a.transport == "local") return run_local(a, run, start);
  return run_agent(a, run, command_line);
}

}  // namespace cairn::cli
