#include "proofs/in_memory_ft_nodes.h"

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/run_events.h"
#include "base/stop.h"
#include "train/agent.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int kGlanceMs = 5;

// The processes that threads of this one have started.
std::vector<int> children() {
  std::vector<int> pids;
  for (const fs::directory_entry& thread : fs::directory_iterator("/proc/self/task")) {
    std::ifstream list(thread.path() / "children");
    for (int pid = 0; list >> pid;) pids.push_back(pid);
  }
  return pids;
}

bool has_variable(int pid, const std::string& setting) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid));
  for (std::string one; std::getline(file, one, '\0');)
    if (one == setting) return true;
  return false;
}

// The memory files of a process with this name.
std::vector<std::string> memory_files(int pid, const std::string& name) {
  std::vector<std::string> files;
  std::error_code gone;
  for (const fs::directory_entry& file : fs::directory_iterator(fmt::format("/proc/{}/fd", pid), gone)) {
    std::error_code ignored;
    if (fs::read_symlink(file.path(), ignored).string().starts_with("/memfd:" + name)) files.push_back(file.path().string());
  }
  return files;
}

}  // namespace

NodeRun::NodeRun(std::string program, fs::path folder, int nodes, std::vector<std::string> sets)
    : program_(std::move(program)), run_(std::move(folder)), log_(run_.string() + ".log"), sets_(std::move(sets)) {
  fs::create_directories(run_);
  for (int node = 0; node < nodes; ++node) keepers_.push_back(elastic::start_keeper({.argv = {program_, "keeper"}}));
}

std::vector<int> NodeRun::run(const std::vector<int>& nodes, const std::function<void(int64_t, double)>& watch) {
  ++generation_;
  nodes_ = nodes;
  std::vector<int> machines;
  for (size_t i = 0; i < nodes.size(); ++i) machines.push_back(static_cast<int>(i));
  std::vector<comm::NetSetup> setups = comm::make_net_setups(machines);
  std::vector<int> codes(nodes.size(), -1);
  std::atomic<int> running{static_cast<int>(nodes.size())};
  std::vector<std::thread> agents;
  for (size_t i = 0; i < nodes.size(); ++i)
    agents.emplace_back([&, i] {
      const int door = keepers_[static_cast<size_t>(nodes[i])].fd();
      train::AgentOptions options{.setups = {setups[i]},
                                  .argv = {"/bin/sh", "-c", fmt::format("exec \"$0\" \"$@\" >>'{}' 2>&1", log_.string()), program_, "train",
                                           "--out", run_.string()},
                                  .env = {{"CAIRN_RUN_DIR", run_.string()},
                                          {"CAIRN_RUN_RESUME", generation_ > 1 ? "1" : "0"},
                                          {"CAIRN_AGENT_SECONDS", "0"},
                                          {"CAIRN_GENERATION", std::to_string(generation_)},
                                          {"CAIRN_LOST_AT", "0"},
                                          {"OMP_NUM_THREADS", "1"},  // as many nodes as there are share the processors
                                          {elastic::kKeeperFdVariable, std::to_string(door)}},
                                  .failure_grace = std::chrono::seconds(3),
                                  .hold_stop = true,
                                  .inherited_fds = {door}};
      for (const std::string& set : sets_) options.argv.insert(options.argv.end(), {"--set", set});
      base::Log log = base::Log::quiet();
      try {
        codes[i] = train::run_ranks(options, log, base::Stop());
      } catch (const Error&) {
        codes[i] = 3;
      }
      --running;
    });
  const base::RealClock clock;
  while (running > 0) {
    if (watch) watch(last_step(), base::seconds(clock.now()));
    ::poll(nullptr, 0, kGlanceMs);
  }
  for (std::thread& one : agents) one.join();
  return codes;
}

void NodeRun::kill_rank(int rank) const {
  for (const int pid : children())
    if (has_variable(pid, fmt::format("CAIRN_RANK={}", rank)) && has_variable(pid, "CAIRN_RUN_DIR=" + run_.string())) ::kill(pid, SIGKILL);
}

void NodeRun::kill_keeper(int node) {
  if (const int pid = keepers_[static_cast<size_t>(node)].pid(); pid > 0) ::kill(pid, SIGKILL);
}

void NodeRun::kill_node(int rank) {
  kill_keeper(nodes_[static_cast<size_t>(rank)]);
  kill_rank(rank);
}

int64_t NodeRun::last_step() const {
  int64_t step = 0;
  for (const auto& [at, loss] : losses()) step = std::max(step, at);
  return step;
}

std::map<int64_t, double> NodeRun::losses() const {
  std::map<int64_t, double> all;
  if (!fs::exists(run_ / "metrics.jsonl")) return all;
  for (const base::MetricsRow& row : base::read_metrics(run_ / "metrics.jsonl"))
    if (row.has("step") && row.has("loss")) all[static_cast<int64_t>(row.number("step"))] = row.number("loss");
  return all;
}

std::string NodeRun::log() const {
  std::stringstream text;
  text << std::ifstream(log_).rdbuf();
  return text.str();
}

std::string NodeRun::restored(const std::string& field) const {
  std::string found;
  for (const base::Json& event : base::read_events(run_))
    if (event.value("event", "") == "restored")
      found = event.at(field).is_string() ? event.at(field).get<std::string>() : event.at(field).dump();
  return found;
}

std::vector<int64_t> NodeRun::segments(int node, const std::string& name) const {
  std::vector<int64_t> bytes;
  for (const std::string& file : memory_files(keepers_[static_cast<size_t>(node)].pid(), name)) {
    struct stat facts {};
    if (::stat(file.c_str(), &facts) == 0) bytes.push_back(facts.st_size);
  }
  return bytes;
}

void NodeRun::flip_byte(int node, int64_t offset) const {
  for (const std::string& name : memory_files(keepers_[static_cast<size_t>(node)].pid(), "cairn-data")) {
    const int file = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
    unsigned char byte = 0;
    const bool flipped = ::pread(file, &byte, 1, offset) == 1 && (byte ^= 0x10, ::pwrite(file, &byte, 1, offset) == 1);
    ::close(file);
    if (!flipped) throw Error(Error::Kind::broken_invariant, "no byte was flipped");
  }
}

}  // namespace cairn::study
