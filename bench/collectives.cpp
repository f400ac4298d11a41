// `cairn bench collectives`: ours, Open MPI and torch.distributed/Gloo in turn, ranks of one machine, every rank rewriting its buffer
// before each timed call.
//
// Goals. From 64 KB on the memory of the machine is the limit, so the goal is 0.9 of the speed of two processes that do nothing but read
// each other's memory (`--case bare`). At 4 KB the cost of a call counts: the goal is 0.85 of Open MPI's speed. Other rows have no goal.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sched.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "bench/collectives_bare.h"
#include "bench/peer_python.h"
#include "comm/net/listen.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;
constexpr std::array<const char*, 4> kOperations{"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
constexpr int64_t kMemoryBound = 64 << 10;  // from here on the memory of the machine is the limit
constexpr double kBareGoal = 0.9;           // of the speed of bare memory
constexpr double kShortGoal = 0.85;         // of Open MPI's speed, below kMemoryBound
constexpr std::array<int64_t, 5> kSizes{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};

using Case = std::pair<std::string, int64_t>;  // operation, bytes
using Times = std::map<Case, double>;          // microseconds

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// As mpirun does: a core for each rank, where there are enough.
void keep_to_core(int rank) {
  cpu_set_t all, own;
  CPU_ZERO(&all);
  CPU_ZERO(&own);
  ::sched_getaffinity(0, sizeof all, &all);
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all) && seen++ == rank) CPU_SET(core, &own);
  }
  ::sched_setaffinity(0, sizeof own, &own);
}

double measure(comm::Group& group, const std::string& operation, int64_t bytes, float* x, float* y) {
  const int64_t count = bytes / 4, share = count / group.size();
  const comm::Span whole_x{x, count, comm::Dtype::f32}, whole_y{y, count, comm::Dtype::f32};
  const comm::Span part_x{x, share, comm::Dtype::f32}, part_y{y, share, comm::Dtype::f32};
  const comm::Label label{comm::Purpose::data, "bench"};
  const std::map<std::string, std::function<comm::Work()>> calls_by_name{
      {"all_reduce", [&] { return group.all_reduce(whole_x, comm::Reduce::sum, label); }},
      {"all_gather", [&] { return group.all_gather(whole_y, part_x, label); }},
      {"reduce_scatter", [&] { return group.reduce_scatter(part_y, whole_x, comm::Reduce::sum, label); }},
      {"all_to_all", [&] { return group.all_to_all(whole_y, whole_x, label); }}};
  const auto& run = calls_by_name.at(operation);
  const int calls = bytes <= 65536 ? 1000 : bytes <= 1 << 20 ? 200 : 11, unused = calls / 5 + 1;
  const base::RealClock clock;
  std::vector<double> seconds;
  std::fill(y, y + count, 0.0f);
  for (int call = -unused; call < calls; ++call) {
    std::fill(x, x + count, static_cast<float>(group.rank() + call));
    group.barrier("bench").wait();
    const auto begun = clock.now();
    run().wait();
    if (call >= 0) seconds.push_back(base::seconds(clock.now() - begun));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2] * 1e6;
}

// What our ranks shall do, and how they are joined.
struct Ours {
  std::vector<comm::NetSetup> setups;
  bool from_group = false;
  std::vector<int64_t> sizes = {kSizes.begin(), kSizes.end()};
  std::string only = {};
  std::optional<comm::LinkModel> links = {};
};

// One rank of ours: writes the same lines as the peers' programs do.
void be_rank(const Ours& ours, comm::NetSetup setup, const std::string& file) {
  const int rank = setup.rank, ranks = setup.size;
  const bool from_group = ours.from_group;
  if (ranks <= cores()) keep_to_core(rank);
  comm::NetOptions options;
  options.links = ours.links;
  comm::World world(comm::make_net_transport(std::move(setup), options));
  comm::Group& group = world.everyone();
  std::ofstream out;
  if (rank == 0) out.open(file);
  for (const std::string operation : kOperations) {
    if (!ours.only.empty() && ours.only != operation) continue;
    for (const int64_t bytes : ours.sizes) {
      std::vector<float> mine(from_group ? 0 : static_cast<size_t>(bytes / 2));
      const std::shared_ptr<void> shared = from_group ? group.allocate(2 * bytes) : nullptr;
      float* x = from_group ? static_cast<float*>(shared.get()) : mine.data();
      const double us = measure(group, operation, bytes, x, x + bytes / 4);
      if (rank == 0) out << operation << ' ' << bytes << ' ' << us << '\n';
    }
  }
}

Times read_times(const std::string& file) {
  std::ifstream in(file);
  Times times;
  std::string operation;
  int64_t bytes = 0;
  double us = 0;
  for (std::string line; std::getline(in, line);) {
    if (std::istringstream words(line); words >> operation >> bytes >> us) times[{operation, bytes}] = us;
  }
  return times;
}

Times run_ours(const Ours& ours, const std::string& scratch) {
  const std::string file = scratch + "/ours.txt";
  std::vector<pid_t> children;
  for (const comm::NetSetup& setup : ours.setups) {
    const pid_t child = ::fork();
    CAIRN_CHECK(child >= 0, "fork failed");
    if (child == 0) {
      int code = 1;
      try {
        be_rank(ours, setup, file);
        code = 0;
      } catch (const std::exception& error) {
        std::ofstream(file + ".error") << error.what();
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  for (const comm::NetSetup& setup : ours.setups) {
    for (const int fd : setup.fds()) {
      if (fd >= 0) ::close(fd);
    }
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!good) base::fail_input("our ranks failed: {}", std::filesystem::exists(file + ".error") ? "see " + file + ".error" : "killed");
  return read_times(file);
}

Times run_mpi(int ranks, const BenchOptions& options) {
  const std::string program = options.scratch + "/collectives_mpi", log = options.scratch + "/mpi.log";
  if (!std::filesystem::exists(program)) {
    const ProcessResult built = run_program({"mpicc", "-O2", std::string(CAIRN_BENCH_FOLDER) + "/collectives_mpi.c", "-o", program}, log);
    if (built.exit_code != 0)
      base::fail_input("the Open MPI side cannot be built (packages libopenmpi-dev, openmpi-bin): {}", built.output);
  }
  std::vector<std::string> command{"mpirun", "--oversubscribe"};
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  command.insert(command.end(), {"-n", std::to_string(ranks), program});
  if (!options.only.empty()) command.push_back(options.only);
  const ProcessResult ended = run_program(command, log);
  if (ended.exit_code != 0) base::fail_input("the Open MPI side failed: {}", ended.output);
  return read_times(log);
}

Times run_gloo(int ranks, const std::string& python, const BenchOptions& options) {
  const std::string log = options.scratch + "/gloo.log";
  const auto [fd, port] = comm::listen_at("127.0.0.1");
  ::close(fd);
  const std::string script = std::string(CAIRN_BENCH_FOLDER) + "/collectives_gloo.py";
  const ProcessResult ended = run_program({python, script, std::to_string(ranks), std::to_string(port), options.only}, log);
  if (ended.exit_code != 0) base::fail_input("the Gloo side failed: {}", ended.output);
  return read_times(log);
}

// What TLS costs between two machines: sockets as they are against sockets in TLS, both on a link of 1 Gbit/s.
std::vector<BenchRow> bench_tls(const BenchOptions& options, base::Log& log) {
  const std::vector<int64_t> sizes{1 << 20, 16 << 20};
  std::map<Case, std::vector<double>> plain, sealed;
  for (int round = 0; round < kRounds; ++round) {
    log.info("TLS at 1 Gbit/s: round {} of {}", round + 1, kRounds);
    for (const bool tls : {false, true}) {
      Ours ours{.setups = comm::make_net_setups(std::vector<int>{0, tls ? 1 : 0}), .sizes = sizes, .only = "all_reduce"};
      ours.links = comm::LinkModel{.latency = std::chrono::microseconds(50), .bytes_per_s = 125e6, .jitter = 0};
      for (const auto& [which, us] : run_ours(ours, options.scratch)) (tls ? sealed : plain)[which].push_back(us);
    }
  }
  std::vector<BenchRow> rows;
  for (const int64_t bytes : sizes) {
    const Case which{"all_reduce", bytes};
    rows.push_back(compare(fmt::format("all_reduce {} MB, 2 machines at 1 Gbit/s, TLS against none", bytes >> 20), sealed[which],
                           plain[which], "us", Better::lower, 1 / 1.03));
  }
  return rows;
}

std::string human(int64_t bytes) { return bytes >= 1 << 20 ? fmt::format("{} MB", bytes >> 20) : fmt::format("{} KB", bytes >> 10); }

// What is left to gain: two processes that do no more than read each other's memory.
std::vector<BenchRow> bench_bare(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  if (cores() < 2) return rows;
  const std::vector<int64_t> sizes{kSizes.begin(), kSizes.end()};
  for (const std::string operation : {"all_reduce", "all_gather"}) {
    std::map<int64_t, std::vector<double>> ours, bare;
    for (int round = 0; round < kRounds; ++round) {
      log.info("{} against bare memory: round {} of {}", operation, round + 1, kRounds);
      const std::vector<double> times = bare_times(operation, sizes);
      for (size_t i = 0; i < sizes.size(); ++i) bare[sizes[i]].push_back(times[i]);
      const Times measured = run_ours({.setups = comm::make_net_setups(2), .from_group = true, .only = operation}, options.scratch);
      for (const auto& [which, us] : measured) ours[which.second].push_back(us);
    }
    for (const int64_t bytes : sizes) {
      rows.push_back(compare(fmt::format("{} {}, 2 ranks, group memory, bare memory", operation, human(bytes)), ours[bytes], bare[bytes],
                             "us", Better::lower, bytes < kMemoryBound ? 0 : kBareGoal));
    }
  }
  return rows;
}

}  // namespace

std::vector<BenchRow> bench_collectives(const BenchOptions& options, base::Log& log) {
  const bool known = std::find(kOperations.begin(), kOperations.end(), options.only) != kOperations.end();
  if (!options.only.empty() && !known && options.only != "tls" && options.only != "bare") {
    base::fail_input("--case {}: the cases are all_reduce, all_gather, reduce_scatter, all_to_all, tls and bare", options.only);
  }
  if (options.only == "bare") return bench_bare(options, log);
  std::vector<BenchRow> rows;
  if (!known) rows = bench_tls(options, log);
  if (options.only == "tls") return rows;
  if (!known) {
    const std::vector<BenchRow> bare = bench_bare(options, log);
    rows.insert(rows.end(), bare.begin(), bare.end());
  }
  const std::string python = peer_python(options, log);
  for (const int ranks : {2, 4}) {
    std::array<std::map<Case, std::vector<double>>, 4> found;  // group memory, private memory, Open MPI, Gloo
    for (int round = 0; round < kRounds; ++round) {
      log.info("{} ranks: round {} of {}", ranks, round + 1, kRounds);
      const auto ours = [&](bool from_group) {
        return run_ours({.setups = comm::make_net_setups(ranks), .from_group = from_group, .only = options.only}, options.scratch);
      };
      const std::array<Times, 4> times{ours(true), ours(false), run_mpi(ranks, options), run_gloo(ranks, python, options)};
      for (size_t who = 0; who < times.size(); ++who) {
        for (const auto& [which, us] : times[who]) found[who][which].push_back(us);
      }
    }
    for (const char* operation : kOperations) {
      for (const int64_t bytes : kSizes) {
        for (const bool mpi : {true, false}) {
          for (const bool from_group : {true, false}) {
            const Case which{operation, bytes};
            const std::vector<double>&ours = found[from_group ? 0 : 1][which], &peer = found[mpi ? 2 : 3][which];
            if (ours.size() != kRounds || peer.size() != kRounds) continue;  // not asked for, or not offered by the peer
            rows.push_back(compare(fmt::format("{} {}, {} ranks, {} memory, {}", operation, human(bytes), ranks,
                                               from_group ? "group" : "private", mpi ? "Open MPI" : "Gloo"),
                                   ours, peer, "us", Better::lower, mpi && bytes < kMemoryBound ? kShortGoal : 0));
          }
        }
      }
    }
  }
  return rows;
}

}  // namespace cairn::study
