#include "cli/launch/launcher.h"

#include <charconv>
#include <cstdint>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::cli {
namespace {

constexpr int kSizeMax = 65536;
constexpr int kPortMax = 65535;
constexpr int64_t kSpecialStep = 0xfffffff0;  // from here on Slurm numbers steps that srun did not start: batch scripts, interactive shells
constexpr int kRendezvousPort = 20000, kRendezvousPorts = 20000;

// A variable that is set, with its name for error messages.
struct Setting {
  const char* name;
  std::string value;
};

std::optional<Setting> setting(const Variables& variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = variable(name)) return Setting{name, *value};
  }
  return std::nullopt;
}

// The first of `names` that is set. Refuses if none is; `who` is the launcher that set the others.
Setting needed(const Variables& variable, std::initializer_list<const char*> names, const char* who) {
  if (auto found = setting(variable, names)) return *found;
  base::fail_input("{} is not set, but other variables of {} are: set it too, or unset those", *names.begin(), who);
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int64_t number_in(const Setting& from, int64_t least, int64_t most) {
  const auto value = whole_number(from.value);
  if (!value || *value < least || *value > most)
    base::fail_input("{} = {}: must be a whole number from {} to {}", from.name, from.value, least, most);
  return *value;
}

int rank_in(const Setting& from, int size) { return static_cast<int>(number_in(from, 0, size - 1)); }
int size_of(const Setting& from, int most = kSizeMax) { return static_cast<int>(number_in(from, 1, most)); }

std::string host_and_port(const std::string& host, int64_t port) {
  const bool address6 = host.find(':') != std::string::npos && host.front() != '[';
  return address6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

// --- torchrun ----------------------------------------------------------------------------------------------------------------------------

// With TORCHELASTIC_USE_AGENT_STORE, torchrun's own store listens at MASTER_PORT. Then the port beside it is taken.
int64_t rendezvous_port(const Variables& variable) {
  const int64_t port = number_in(needed(variable, {"MASTER_PORT"}, "torchrun"), 1, kPortMax);
  const auto agent_store = variable("TORCHELASTIC_USE_AGENT_STORE");
  if (agent_store != "True") return port;
  return port < kPortMax ? port + 1 : port - 1;
}

Launch torchrun_launch(const Variables& variable) {
  const char* who = "torchrun";
  Launch launch{.by = Launch::By::torchrun};
  launch.size = size_of(needed(variable, {"WORLD_SIZE"}, who));
  launch.rank = rank_in(needed(variable, {"RANK"}, who), launch.size);
  const auto place = [&](const char* name, const char* standing_for) {
    if (auto found = setting(variable, {name})) return *found;
    base::fail_input("{} is not set, but RANK, WORLD_SIZE = {} and MASTER_ADDR are: set it to {}", name, launch.size, standing_for);
  };
  // A single rank (in the world, or on its machine) needs no local rank.
  launch.local_size = launch.size == 1 ? 1 : size_of(place("LOCAL_WORLD_SIZE", "the number of ranks on this machine"), launch.size);
  launch.local_rank = launch.local_size == 1 && !variable("LOCAL_RANK")
                          ? 0
                          : rank_in(place("LOCAL_RANK", "this rank's number among those on its machine, from 0"), launch.local_size);
  const std::string host = needed(variable, {"MASTER_ADDR"}, who).value;
  if (launch.local_size < launch.size) launch.rendezvous = host_and_port(host, rendezvous_port(variable));
  // Without a run id torchrun calls every run "none": host and port distinguish runs.
  const auto or_dash = [&](const char* name) { return variable(name).value_or("-"); };
  launch.job = fmt::format("torchrun/{}/{}/{}/{}/{}", host, or_dash("MASTER_PORT"), or_dash("TORCHELASTIC_RUN_ID"),
                           or_dash("TORCHELASTIC_RESTART_COUNT"), or_dash("GROUP_RANK"));
  return launch;
}

bool by_torchrun(const Variables& variable) { return variable("RANK") && variable("WORLD_SIZE") && variable("MASTER_ADDR"); }

// --- Open MPI ----------------------------------------------------------------------------------------------------------------------------

Launch mpirun_launch(const Variables& variable) {
  const char* who = "mpirun";
  Launch launch{.by = Launch::By::mpirun};
  launch.size = size_of(needed(variable, {"OMPI_COMM_WORLD_SIZE"}, who));
  launch.rank = rank_in(needed(variable, {"OMPI_COMM_WORLD_RANK"}, who), launch.size);
  launch.local_size = size_of(needed(variable, {"OMPI_COMM_WORLD_LOCAL_SIZE"}, who), launch.size);
  launch.local_rank = rank_in(needed(variable, {"OMPI_COMM_WORLD_LOCAL_RANK"}, who), launch.local_size);
  launch.job = "mpirun/" + needed(variable, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, who).value;
  return launch;
}

bool by_mpirun(const Variables& variable) { return variable("OMPI_COMM_WORLD_RANK").has_value(); }

// --- Slurm -------------------------------------------------------------------------------------------------------------------------------

// Parses "2(x3),1": the number of tasks of each node, in order.
std::vector<int> tasks_per_node(const Setting& from) {
  const auto refuse = [&](std::string_view part) {
    base::fail_input("{} = {}: cannot read \"{}\": must be numbers of tasks such as 2(x3),1", from.name, from.value, part);
  };
  std::vector<int> tasks;
  std::string_view rest = from.value;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const size_t repeat = part.find("(x");
    const auto count = whole_number(part.substr(0, repeat));
    std::optional<int64_t> times = 1;
    if (repeat != std::string_view::npos)
      times = part.back() == ')' ? whole_number(part.substr(repeat + 2, part.size() - repeat - 3)) : std::nullopt;
    if (!count || *count < 1 || *count > kSizeMax || !times || *times < 1 || *times > kSizeMax) refuse(part);
    tasks.insert(tasks.end(), static_cast<size_t>(*times), static_cast<int>(*count));
    if (tasks.size() > kSizeMax) refuse(part);
    if (part.size() == rest.size()) return tasks;
    rest.remove_prefix(part.size() + 1);
  }
}

// The first name of a list such as "gpu[01-04,07],login1" or "rack[1-2]node[03-08]".
std::string first_host(const Setting& from) {
  const auto refuse = [&](const char* why) {
    base::fail_input("{} = {}: {}: must be names such as gpu[01-04,07],login1", from.name, from.value, why);
  };
  std::string host;
  const std::string_view list = from.value;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] == ']') refuse("] without [");
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const size_t close = list.find(']', at);
    if (close == std::string_view::npos) refuse("[ without ]");
    const std::string_view range = list.substr(at + 1, close - at - 1);
    const std::string_view first = range.substr(0, range.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) refuse("no number after [");
    host += first;
    at = close;
  }
  if (host.empty()) refuse("no name at its beginning");
  return host;
}

// A step of srun as this task sees it.
struct SlurmStep {
  int64_t job, step;
  int task, size, local_task, node;
  std::vector<int> tasks;  // by node
  std::optional<std::string> rendezvous;
};

// Returns nothing in a batch script or an interactive shell, where no tasks were started.
std::optional<SlurmStep> slurm_step(const Variables& variable) {
  const auto id = setting(variable, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (!id || !variable("SLURM_PROCID") || !setting(variable, {"SLURM_STEP_NUM_TASKS"})) return std::nullopt;
  const char* who = "srun";
  SlurmStep step{};
  step.step = number_in(*id, 0, UINT32_MAX);
  if (step.step >= kSpecialStep) return std::nullopt;
  step.job = number_in(needed(variable, {"SLURM_JOB_ID", "SLURM_JOBID"}, who), 0, UINT32_MAX);
  step.size = size_of(needed(variable, {"SLURM_STEP_NUM_TASKS"}, who));
  step.task = rank_in(needed(variable, {"SLURM_PROCID"}, who), step.size);
  const Setting counts = needed(variable, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}, who);
  step.tasks = tasks_per_node(counts);
  int64_t sum = 0;
  for (const int count : step.tasks) sum += count;
  if (sum != step.size)
    base::fail_input("{} = {}: these are {} tasks, but SLURM_STEP_NUM_TASKS = {}", counts.name, counts.value, sum, step.size);
  step.node = rank_in(needed(variable, {"SLURM_NODEID"}, who), static_cast<int>(step.tasks.size()));
  step.local_task = rank_in(needed(variable, {"SLURM_LOCALID"}, who), step.tasks[step.node]);
  if (step.tasks.size() > 1) {
    const std::string host = first_host(needed(variable, {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}, who));
    // Neighbouring steps and jobs get different ports.
    step.rendezvous = host_and_port(host, kRendezvousPort + (step.job * 101 + step.step) % kRendezvousPorts);
  }
  return step;
}

Launch slurm_launch(const SlurmStep& step) {
  return {.by = Launch::By::slurm,
          .rank = step.task,
          .size = step.size,
          .local_rank = step.local_task,
          .local_size = step.tasks[step.node],
          .rendezvous = step.rendezvous,
          .job = fmt::format("slurm/{}.{}/{}", step.job, step.step, step.node)};  // nodes may share a machine
}

}  // namespace

std::optional<Launch> detect_launch(const Variables& variable) {
  if (by_mpirun(variable)) return mpirun_launch(variable);
  if (by_torchrun(variable)) return torchrun_launch(variable);
  if (const auto step = slurm_step(variable)) return slurm_launch(*step);
  return std::nullopt;
}

std::optional<NodePlace> detect_node(const Variables& variable) {
  if (by_mpirun(variable) || by_torchrun(variable)) return std::nullopt;  // inside Slurm these start one srun process per node
  const auto step = slurm_step(variable);
  if (!step) return std::nullopt;
  for (const int count : step->tasks) {
    if (count > 1)
      base::fail_input(
          "srun started {} tasks on one node, and each would start all ranks of its machine: use srun --ntasks-per-node=1, "
          "or leave out --nproc, so that each task is a rank",
          count);
  }
  return NodePlace{step->node, static_cast<int>(step->tasks.size()), step->rendezvous};
}

}  // namespace cairn::cli
