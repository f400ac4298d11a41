// `cairn train`: decides where and on what a recipe runs, then runs it: as processes under an agent, or as threads of this one.
#include "train/train.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/cause.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/launch/diagnosis_policy.h"
#include "cli/launch/launcher.h"
#include "cli/launch/links.h"
#include "cli/launch/loss_policy.h"
#include "cli/launch/rank_process.h"
#include "cli/launch/rank_setups.h"
#include "cli/launch/restarting_agents.h"
#include "cli/launch/resumed_recipe.h"
#include "cli/launch/run_directory.h"
#include "cli/recipe_overrides.h"
#include "cli/signals.h"
#include "cli/train_recipe.h"
#include "comm/local/local.h"
#include "comm/mpi/transport.h"
#include "comm/nccl/transport.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "elastic/keeper.h"
#include "kernels/adamw.h"
#include "mesh/mesh.h"
#include "parallel/layout/plan_file.h"
#include "parallel/options.h"
#include "sync/needs.h"
#include "sync/options.h"
#include "train/agent.h"
#include "train/check_files.h"
#include "train/dry_run.h"
#include "train/settings.h"
#include "train/state/memory_snapshot.h"

namespace cairn::cli {
namespace {

constexpr int64_t kRankBytes = int64_t{150} << 20;       // a rank process before it holds anything
constexpr int64_t kThreadRankBytes = int64_t{64} << 20;  // a rank as a thread, with the data and state of a small model

std::optional<comm::LinkModel> links_among(const TrainArguments& a, int ranks) {
  const std::optional<comm::LinkModel> links = variable("CAIRN_ISLAND_ALONE") ? std::nullopt : parse_links(a.links);
  return links ? std::optional(island_links(*links, ranks, islands_of(a))) : std::nullopt;
}

// Refuses a rank count that this machine cannot hold, before anything is started.
void check_ranks(const TrainArguments& a) {
  const int64_t each = a.transport == "local" ? kThreadRankBytes : kRankBytes;
  const int64_t machine = base::machine_bytes(), fits = std::max<int64_t>(1, machine * 8 / 10 / each);
  if (a.nproc > fits)
    base::fail_input("--nproc {}: {} ranks need at least {} and this machine has {}; at most {} ranks fit here", a.nproc, a.nproc,
                     base::human_bytes(each * a.nproc), base::human_bytes(machine), fits);
}

void print_run_header(const TrainArguments& a, const RunDirectory& run, int ranks, base::Terminal& terminal) {
  if (!run.note.empty()) terminal.line(run.note);
  if (run.resume) {
    const std::string from = run.furthest == 0         ? "from the beginning: it has no snapshot"
                             : run.step < run.furthest ? fmt::format("from step {} or before: its islands differ", run.furthest)
                                                       : fmt::format("from step {}", run.step);
    terminal.line(fmt::format("resuming {} {} on {} ({})", run.path.string(), from, base::plural(ranks, "rank"), a.device));
  } else {
    terminal.line(fmt::format("training {} on {} ({}); everything goes to {}", run_name(request_of(a)), base::plural(ranks, "rank"),
                              a.device, run.path.string()));
  }
  if (a.device == "cpu" && kernels::has_cuda_kernels() && !visible_gpus().empty())
    terminal.line("(this machine has a GPU: --device cuda trains on it)");
}

// Names the keys that differ from the resumed run's recipe.
void print_changed_keys(const base::Recipe& recipe, const RunDirectory& run, base::Terminal& terminal) {
  if (!run.resume) return;
  const base::Recipe::File before = base::Recipe::File::read(run.path / "recipe.toml");
  for (const std::string& line : changed_keys(read_saved_recipe(before, start_folder(run.path)), recipe, run.path)) terminal.line(line);
}

// The memory that ranks of this machine share. An agent leaves a GPU's out: a CUDA context of its own would take some of it.
train::DeviceMemory shared_memory(const TrainArguments& a, int ranks_here) {
  const int gpus = std::max(1, static_cast<int>(visible_gpus().size()));
  const int ranks = a.device == "cuda" ? (ranks_here + gpus - 1) / gpus : ranks_here;
  return {.bytes = train::device_memory_bytes(a.device), .ranks = ranks, .processes = a.transport == "local" ? 1 : ranks};
}

void check_memory(const TrainArguments& a, const train::DryRun& run) {
  if (!run.misfit.empty() && !a.allow_oversize) base::fail_input("{}; --allow-oversize trains all the same", run.misfit);
}

// A resumed run's own recipe.toml may have the names of an earlier version: it is written anew with the present ones.
void print_run_hints(const TrainArguments& a, const RunDecision& decision, const base::Recipe& recipe, base::Terminal& terminal) {
  print_hints(recipe, terminal, a.recipe.empty() && decision.recipe ? decision.recipe->name : "");
}

void print_run_summary(const train::Result& result, const RunDirectory& run, base::Terminal& terminal) {
  terminal.line(fmt::format("report: {}", (run.path / "report.html").string()));
  if (result.stopped)
    terminal.line(fmt::format("stopped on request after step {}; continue with: cairn train --resume {}", result.step, run.path.string()));
}

// Whether this run is a remote island: one of several runs that find each other over the network.
bool is_remote_island(base::Recipe recipe) { return train::is_remote_island(recipe.read(train::remote_island_schema())); }

train::RemoteIslandStart remote_islands_of(const TrainArguments& a) {
  const std::string key = a.key.empty() ? variable("CAIRN_KEY").value_or("") : a.key;
  if (key.empty())
    base::fail_input(
        "remote islands need a key, so that nobody else can join: `cairn key run.key` makes one; copy it to each and add --key run.key (or "
        "set CAIRN_KEY to its path)");
  return {.key = comm::read_key(key), .links = parse_links(a.links)};
}

// Runs one rank as this process, one of `ranks_here` on this machine. `connect` makes its transport; `chosen` is the run directory if the
// agent has chosen it already.
int run_process(const TrainArguments& a, train::Start start, int ranks_here,
                const std::function<std::unique_ptr<comm::Transport>(const base::Stop&)>& connect,
                const std::optional<RunDirectory>& chosen) {
  const Signals signals;
  auto terminal = std::make_shared<base::Terminal>();
  std::unique_ptr<comm::Transport> transport;
  try {
    transport = connect(signals.stop());
  } catch (const Error& error) {
    if (!train::is_stop_before_first_step(error, signals.stop())) throw;
    if (variable("CAIRN_LOCAL_RANK").value_or("0") == "0") terminal->line(error.what());
    return 0;
  }
  if (a.transport == "nccl") transport = comm::make_nccl_transport(std::move(transport), 0);
  const int rank = transport->rank(), size = transport->size();
  comm::WorldOptions options;
  options.log = base::Log({.rank = rank, .terminal = terminal, .file = {}});
  comm::World world(std::move(transport), std::move(options));
  std::unique_ptr<snapshot::RunLock> lock;  // an agent holds it for its ranks
  bool begun = false;
  const auto run = [&] {
    const RunDecision decision = broadcast_decision(world, [&] {
      if (chosen) return decide(start.generation > 1 ? without_recipe_file(a) : a, *chosen);
      ClaimedRun claimed = claim_run_directory(request_of(a));
      lock = std::move(claimed.lock);
      return decide(a, claimed.run);
    });
    start.out = decision.run.path;
    start.resume = decision.run.resume;
    start.day = decision.day;
    if (rank == 0) {
      start.terminal = terminal;
      if (!chosen) print_run_header(a, decision.run, size, *terminal);
    }
    base::Recipe recipe = make_recipe(a, decision);
    if (rank == 0 && !chosen) print_run_hints(a, decision, recipe, *terminal);
    if (rank == 0 && !chosen) print_changed_keys(recipe, decision.run, *terminal);
    if (const std::string finished = finished_line(recipe, decision.run); !finished.empty()) {
      if (rank == 0) terminal->line(finished);
      return 0;
    }
    if (a.device == "cuda" || !chosen || size > ranks_here)
      check_memory(a, train::dry_run(recipe, start, size, shared_memory(a, ranks_here)));
    if (start.generation == 0) check_loss_policy(recipe, "another launcher has started the ranks, one by one");
    if (is_remote_island(recipe)) start.remote = remote_islands_of(a);
    begun = true;
    const train::Result result = train::run(world, std::move(recipe), start, {}, signals.stop());
    if (rank == 0) print_run_summary(result, decision.run, *terminal);
    return 0;
  };
  return report_failure_to_peers(world, [&] {
    try {
      return run();
    } catch (const Error& error) {
      const bool marked = std::count(error.context().begin(), error.context().end(), train::kBeforeFirstStep) > 0;
      if (!marked && (begun || !train::is_stop_before_first_step(error, signals.stop()))) throw;
      world.fail(marked ? error : Error(error).with(train::kBeforeFirstStep));
      if (rank == 0) terminal->line(error.what());
      return 0;
    }
  });
}

// Ranks as threads of this process, on the virtual network.
int run_local(const TrainArguments& a, const RunDecision& decision, const train::Start& start) {
  const Signals signals;
  auto terminal = std::make_shared<base::Terminal>();
  comm::LocalOptions options;
  if (const auto links = parse_links(a.links)) options.link = island_links(*links, a.nproc, islands_of(a));
  options.world = [&](int rank) {
    comm::WorldOptions world;
    world.log = base::Log({.rank = rank, .terminal = terminal, .file = {}});
    return world;
  };
  train::Result result;
  const auto ended = comm::LocalNetwork(a.nproc, options).run([&](comm::World& world) {
    train::Start own = start;
    if (world.rank() == 0) own.terminal = terminal;
    const train::Result mine =
        report_failure_to_peers(world, [&] { return train::run(world, make_recipe(a, decision), own, {}, signals.stop()); });
    if (world.rank() == 0) result = mine;
  });
  rethrow_cause(ended);
  print_run_summary(result, decision.run, *terminal);
  return 0;
}

// Tells the agent and its ranks, by environment variables, how many islands the recipe has and whether they take local steps.
void export_island_variables(base::Recipe recipe) {
  const int64_t islands = recipe.read(parallel::mesh_schema()).island;
  set_variable("CAIRN_ISLANDS", std::to_string(islands));
  if (is_remote_island(recipe)) set_variable("CAIRN_ISLAND_ALONE", "1");
  if (islands > 1 && sync::needs_of(sync::read_island_sync(recipe).kind).local_steps)
    set_variable("CAIRN_ISLANDS_APART", std::to_string(islands));
}

// Starts this machine's ranks as processes and watches over them. On the first machine, the run directory is passed on to rank 0; null on
// others. Ranks inherit its lock: it is in use until the last of them has ended.
int run_agent(const TrainArguments& a, const NodePlace& place, const ClaimedRun* claimed, const elastic::DiagnosisOptions& diagnosis,
              const std::vector<std::string>& command_line) {
  const Signals signals;
  auto terminal = std::make_shared<base::Terminal>();
  train::AgentOptions options{.setups = {}, .argv = {own_program().string()}, .env = {}, .hold_stop = true, .diagnosis = diagnosis};
  if (const auto apart = variable("CAIRN_ISLANDS_APART")) options.islands = std::stoi(*apart);
  try {
    options.setups = meet_and_set_up(a, place, fingerprint(a), signals.stop(), *terminal);
  } catch (const Error& error) {
    if (!signals.stop().requested() && error.kind() != Error::Kind::cancelled) throw;
    terminal->line(error.what());
    return 0;
  }
  base::Log log({.rank = options.setups.front().rank, .terminal = terminal, .file = {}});
  options.argv.insert(options.argv.end(), command_line.begin(), command_line.end());
  if (claimed) {
    print_run_header(a, claimed->run, options.setups.front().size, *terminal);
    options.env = {{"CAIRN_RUN_DIR", claimed->run.path.string()}, {"CAIRN_RUN_RESUME", claimed->run.resume ? "1" : "0"}};
    claimed->lock->let_children_inherit();
  }
  const comm::NetSetup& own = options.setups.front();
  const elastic::KeeperHandle keeper = give_keeper(options, own.addresses[static_cast<size_t>(own.rank)].host, log);
  options.env.emplace_back("CAIRN_AGENT_SECONDS", fmt::format("{:.3f}", base::process_age()));
  return train::run_ranks(options, log, signals.stop());
}

// This process is a rank that the agent started: its set-up is inherited as a file.
int run_agent_rank(TrainArguments a, train::Start start, int setup_fd) {
  if (variable("CAIRN_SHRUNK")) a = with_free_replicas(a);
  std::optional<RunDirectory> run;
  if (const auto path = variable("CAIRN_RUN_DIR")) run = {*path, *variable("CAIRN_RUN_RESUME") == "1"};
  if (const auto door = variable(elastic::kKeeperFdVariable)) {
    start.keeper = std::make_shared<train::MemorySnapshots>(std::stoi(*door));
    start.memory = start.keeper;
  }
  start.seconds_before = std::stod(*variable("CAIRN_AGENT_SECONDS"));
  start.generation = std::stoi(variable("CAIRN_GENERATION").value_or("1"));
  start.lost_at = std::stod(variable("CAIRN_LOST_AT").value_or("0"));
  comm::NetSetup setup = train::inherited_setup(setup_fd);
  const auto here = static_cast<int>(setup.neighbours().size());
  start.threads = threads_among(here);
  assign_gpu(a.device, a.transport, std::stoi(*variable("CAIRN_LOCAL_RANK")), here);
  const auto connect = [&](const base::Stop& stop) {
    const std::optional<comm::LinkModel> links = links_among(a, setup.size);
    return comm::make_net_transport(std::move(setup), net_options(a, links, stop));
  };
  return run_process(a, start, here, connect, run);
}

// This process is a rank that mpirun started, and MPI is its transport.
int run_mpi_rank(const TrainArguments& a, train::Start start, const std::optional<Launch>& launch) {
  if (a.nproc_given)
    base::fail_input("--nproc {} --transport mpi: MPI starts its ranks itself: mpirun -n {} cairn train --transport mpi", a.nproc, a.nproc);
  const int here = launch ? launch->local_size : 1;
  start.threads = threads_per_rank(here);
  const auto connect = [](const base::Stop&) { return comm::make_mpi_transport(); };
  return run_process(a, start, here, connect, std::nullopt);
}

// This process is a rank that torchrun, srun or mpirun started, with Cairn's own transport.
int run_launched_rank(const TrainArguments& a, train::Start start, const Launch& launch) {
  start.threads = threads_per_rank(launch.local_size);
  const auto connect = [&](const base::Stop& stop) {
    base::Terminal terminal;
    return comm::make_net_transport(join_launched(a, launch, fingerprint(a), stop, terminal),
                                    net_options(a, links_among(a, launch.size), stop));
  };
  return run_process(a, start, launch.local_size, connect, std::nullopt);
}

// Refuses what is wrong with a run, before any rank starts and before other machines wait.
void check_run(const TrainArguments& a, const base::Recipe& recipe, const train::Start& start, int nodes) {
  train::check_recipe(recipe, nodes > 1 ? 0 : a.nproc, start.plan.get());  // how many ranks other machines have is not known yet
  train::check_files(recipe, start);
  if (!is_remote_island(recipe)) return;
  if (a.transport == "local")
    base::fail_input("--transport local: remote islands need a real network: leave it out, or leave out --island");
  remote_islands_of(a);
}

// Refuses a run that does not fit into memory or onto the disk, by the figures of --dry-run.
void check_size(const TrainArguments& a, const base::Recipe& recipe, const train::Start& start, base::Terminal& terminal) {
  const bool on_cpu = a.device == "cpu";  // ranks look at their own GPU
  const train::DryRun run = train::dry_run(recipe, start, a.nproc, on_cpu ? shared_memory(a, a.nproc) : train::DeviceMemory{});
  check_memory(a, run);
  if (const std::string warning = train::check_disk(run, start.out, base::free_bytes(start.out), !a.allow_oversize); !warning.empty())
    terminal.line(warning);
}

// The recipe with the number of ranks and threads that follow from it.
base::Recipe settle_ranks(TrainArguments& a, const RunDecision& decision, train::Start& start, const NodePlace& place) {
  start.out = decision.run.path;
  start.resume = decision.run.resume;
  start.day = decision.day;
  base::Recipe recipe = make_recipe(a, decision);
  if (!a.nproc_given && a.mesh.empty() && !start.plan && place.nnodes == 1) {
    a.nproc = rank_count(recipe);
    start.threads = threads_among(a.nproc);
  }
  check_ranks(a);
  return recipe;
}

// --dry-run: takes no run directory.
int show_dry_run(TrainArguments a, train::Start start, const NodePlace& place) {
  const RunDecision decision = decide(a, find_run_directory(request_of(a)));
  const base::Recipe recipe = settle_ranks(a, decision, start, place);
  base::Terminal terminal;
  print_run_hints(a, decision, recipe, terminal);
  const train::DryRun run = train::dry_run(recipe, start, a.nproc * place.nnodes, shared_memory(a, a.nproc));
  terminal.line(run.text);
  return run.misfit.empty() ? 0 : 1;
}

RestartingRun restarting_run(const TrainArguments& a, const base::Recipe& recipe, const std::vector<std::string>& command_line) {
  const auto show_header = [&a](const RunDirectory& run, int ranks) {
    base::Terminal terminal;
    print_run_header(a, run, ranks, terminal);
  };
  return {.launch = a,
          .policy = loss_policy(recipe),
          .diagnosis = diagnosis_of(recipe),
          .command_line = command_line,
          .show_header = show_header};
}

// What a machine among several sees of the run before the machines have met: another one may hold its directory.
RunDecision preview(const TrainArguments& a) {
  try {
    return decide(a, find_run_directory(request_of(a)));
  } catch (const Error&) {
    if (a.out.empty() || !std::filesystem::exists(std::filesystem::path(a.out) / "recipe.toml")) throw;
    return decide(a, {.path = a.out, .resume = true});
  }
}

// One of several machines whose ranks are started again after a loss. Nothing: the recipe says otherwise, or cannot be seen here.
std::optional<int> run_in_group(TrainArguments a, train::Start start, const NodePlace& place,
                                const std::vector<std::string>& command_line) {
  RunDecision decision;
  base::Recipe recipe;
  try {
    decision = preview(a);
    recipe = make_recipe(a, decision);
    if (loss_policy(recipe).on_loss == train::OnLoss::stop) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // the first machine says what is wrong
  }
  recipe = settle_ranks(a, decision, start, place);
  check_loss_policy(recipe, "");
  if (place.node_rank == 0) {
    base::Terminal terminal;
    print_run_hints(a, decision, recipe, terminal);
    check_run(a, recipe, start, place.nnodes);
    if (const std::string finished = finished_line(recipe, decision.run); !finished.empty()) {
      terminal.line(finished);
      return 0;
    }
  }
  export_island_variables(recipe);
  const auto check_layout = [&](int ranks, bool shrunk) -> std::string {
    try {
      train::check_recipe(make_recipe(shrunk ? with_free_replicas(a) : a, decision), ranks, start.plan.get());
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  return run_group_agent(restarting_run(a, recipe, command_line),
                         {.place = place, .config_fingerprint = fingerprint(a), .request = request_of(a), .check_layout = check_layout});
}

// This process starts the run: on the only machine, or on the first of several.
int start_run(TrainArguments a, train::Start start, const NodePlace& place, const std::vector<std::string>& command_line) {
  if (a.dry_run) return show_dry_run(a, start, place);
  const ClaimedRun claimed = claim_run_directory(request_of(a));
  const RunDecision decision = decide(a, claimed.run);
  const base::Recipe recipe = settle_ranks(a, decision, start, place);
  base::Terminal terminal;
  print_run_hints(a, decision, recipe, terminal);
  print_changed_keys(recipe, decision.run, terminal);
  check_run(a, recipe, start, place.nnodes);
  if (const std::string finished = finished_line(recipe, decision.run); !finished.empty()) {
    terminal.line(finished);
    return 0;
  }
  if (place.nnodes == 1) check_size(a, recipe, start, terminal);
  check_loss_policy(recipe, a.transport == "local" ? "ranks are threads of one process (--transport local)" : "");
  export_island_variables(recipe);
  if (a.transport == "local") {
    print_run_header(a, decision.run, a.nproc, terminal);
    return run_local(a, decision, start);
  }
  if (place.nnodes == 1 && loss_policy(recipe).on_loss != train::OnLoss::stop)
    return run_lone_agent(restarting_run(a, recipe, command_line), claimed);
  return run_agent(a, place, &claimed, diagnosis_of(recipe), command_line);
}

}  // namespace

int train_command(const TrainArguments& given, const std::vector<std::string>& command_line) {
  TrainArguments a = with_ranks_of_mesh(given);
  const std::shared_ptr<const parallel::Plan> plan = read_given_plan(a);
  check_transport(a, a.device);
  const train::Start start{.out = {},
                           .resume = false,
                           .cache = cache_folder() / "data",
                           .device = a.device,
                           .threads = threads_among(a.nproc),
                           .terminal = nullptr,
                           .plan = plan};
  if (const auto setup_fd = variable("CAIRN_SETUP_FD")) return run_agent_rank(a, start, std::stoi(*setup_fd));
  const SignalsBeforeRun signals;
  const std::optional<Launch> launch =
      a.nproc_given || a.nnodes > 0 || a.transport == "local" || a.dry_run ? std::nullopt : detect_launch(variable);
  if (launch) {
    set_variable("CAIRN_RANK", std::to_string(launch->rank));
    set_variable("CAIRN_LOCAL_RANK", std::to_string(launch->local_rank));
    assign_gpu(a.device, a.transport, launch->local_rank, launch->local_size);
  }
  if (a.transport == "mpi") return run_mpi_rank(a, start, launch);
  if (launch) return run_launched_rank(a, start, *launch);
  const NodePlace place = node_place(a);
  if (place.nnodes > 1 && !a.dry_run)
    if (const std::optional<int> code = run_in_group(a, start, place, command_line)) return *code;
  if (place.node_rank == 0) return start_run(a, start, place, command_line);
  check_ranks(a);
  base::Terminal().line(fmt::format("machine {} of {}: {} rank{} here; machine 0 shows how the run goes", place.node_rank, place.nnodes,
                                    a.nproc, a.nproc == 1 ? "" : "s"));
  return run_agent(a, place, nullptr, {}, command_line);  // machine 0 reads the recipe; this agent writes what its ranks record
}

}  // namespace cairn::cli
