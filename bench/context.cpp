// `cairn bench context`: attention along cp, forward and backward, beside zigzag ring attention in plain PyTorch over Gloo
// (context_gloo.py): the same shapes in fp32, ranks of this machine, one thread each. Ours is what `context.form = "auto"` chooses; the
// forms follow it for information.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "bench/peer_python.h"
#include "comm/net/listen.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "mesh/splits.h"
#include "model/context/attention.h"
#include "model/context/choose.h"
#include "parallel/layout/settle_context.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3, kCalls = 5;
constexpr int64_t kLength = 4096, kHeads = 8, kHeadDim = 64;
constexpr double kFlops = 20e9;  // of attention on one core, as train assumes

struct Measured {
  double ms = 0;
  int64_t bytes = 0;
};
using Results = std::map<std::pair<std::string, int64_t>, Measured>;  // form, key heads

// All lines are "FORM KV_HEADS MS BYTES"; the peer's have no form.
Results read_results(const std::string& file, const std::string& form = "") {
  Results results;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name = form;
    int64_t kv_heads = 0;
    Measured one;
    if (form.empty()) words >> name;
    if (words >> kv_heads >> one.ms >> one.bytes) results[{name, kv_heads}] = one;
  }
  return results;
}

Measured measure(comm::World& world, const model::ContextMethod& method, int64_t kv_heads) {
  comm::Group& all = world.everyone();
  const model::ContextSplit split{kLength, mesh::split_zigzag(1, kLength, all.size()).pieces};
  const int64_t local = model::held(split, all.rank());
  const at::Tensor q = at::randn({1, local, kHeads, kHeadDim}), k = at::randn({1, local, kv_heads, kHeadDim}), v = at::randn(k.sizes()),
                   dout = at::randn(q.sizes());
  const at::Tensor out = at::empty_like(q), lse = at::empty({1, kHeads, local}), dq = at::empty_like(q), dk = at::empty_like(k),
                   dv = at::empty_like(k);
  const base::RealClock clock;
  std::vector<double> times;
  int64_t bytes = 0;
  for (int call = 0; call <= kCalls; ++call) {
    all.barrier().wait();
    const int64_t before = world.ledger().total(comm::Purpose::activation).bytes;
    const auto begun = clock.now();
    model::context_attention(out, lse, q, k, v, {}, nullptr, all, split, method);
    model::context_attention_backward(dq, dk, dv, dout, q, k, v, out, lse, {}, nullptr, all, split, method);
    double took = base::seconds(clock.now() - begun);
    all.all_reduce({&took, 1, comm::Dtype::f64}, comm::Reduce::max, {comm::Purpose::control, "slowest"}).wait();
    bytes = world.ledger().total(comm::Purpose::activation).bytes - before;
    if (call > 0) times.push_back(took);
  }
  all.all_reduce({&bytes, 1, comm::Dtype::i64}, comm::Reduce::sum, {comm::Purpose::control, "bytes"}).wait();
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2] * 1e3, bytes};
}

void be_rank(comm::NetSetup setup, const std::string& file) {
  at::set_num_threads(1);
  comm::World world(comm::make_net_transport(std::move(setup), {}));
  const int ranks = world.size();
  std::vector<int> everyone;
  for (int rank = 0; rank < ranks; ++rank) everyone.push_back(rank);
  std::ofstream out;
  if (world.rank() == 0) out.open(file);
  const auto note = [&](const std::string& form, int64_t kv_heads, const Measured& one) {
    if (world.rank() == 0) out << form << ' ' << kv_heads << ' ' << one.ms << ' ' << one.bytes << '\n';
  };
  for (const int64_t kv_heads : {kHeads, kHeads / 4}) {
    const model::ContextSplit split{kLength, mesh::split_zigzag(1, kLength, ranks).pieces};
    const model::ContextChoices choices =
        model::choose_context({1, kv_heads, kHeadDim, 4, false, kHeads}, {}, split, parallel::context_links(world, everyone, kFlops));
    note("auto", kv_heads, measure(world, choices.best(), kv_heads));
    for (const model::ContextForm form : {model::ContextForm::ring, model::ContextForm::ring_both_ways, model::ContextForm::gather,
                                          model::ContextForm::ulysses, model::ContextForm::token_ring})
      note(model::to_string(form, ranks), kv_heads, measure(world, form, kv_heads));
  }
}

// Each rank is a process that this one forks before it uses libtorch.
Results run_ours(int ranks, const std::string& scratch) {
  const std::string file = scratch + "/context.txt";
  std::vector<pid_t> children;
  const std::vector<comm::NetSetup> setups = comm::make_net_setups(ranks);
  for (const comm::NetSetup& setup : setups) {
    const pid_t child = ::fork();
    CAIRN_CHECK(child >= 0, "fork failed");
    if (child == 0) {
      int code = 1;
      try {
        be_rank(setup, file);
        code = 0;
      } catch (const std::exception& error) {
        std::ofstream(file + ".error") << error.what();
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  for (const comm::NetSetup& setup : setups)
    for (const int fd : setup.fds())
      if (fd >= 0) ::close(fd);
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!good) base::fail_input("our ranks failed: {}", std::filesystem::exists(file + ".error") ? "see " + file + ".error" : "killed");
  return read_results(file);
}

Results run_gloo(int ranks, const std::string& python, const BenchOptions& options) {
  const std::string log = fmt::format("{}/context_gloo.log", options.scratch);
  const auto [fd, port] = comm::listen_at("127.0.0.1");
  ::close(fd);
  const ProcessResult ended =
      run_program({python, fmt::format("{}/context_gloo.py", CAIRN_BENCH_FOLDER), std::to_string(ranks), std::to_string(port),
                   std::to_string(kLength), std::to_string(kHeads), std::to_string(kHeadDim), std::to_string(kCalls)},
                  log);
  if (ended.exit_code != 0) base::fail_input("the PyTorch side failed: {}", ended.output);
  return read_results(log, "gloo");
}

}  // namespace

std::vector<BenchRow> bench_context(const BenchOptions& options, base::Log& log) {
  const std::string python = peer_python(options, log);
  std::vector<BenchRow> rows;
  for (const int ranks : {2, 4}) {
    if (!options.only.empty() && options.only != fmt::format("cp-{}", ranks)) continue;
    std::map<std::pair<std::string, int64_t>, std::vector<double>> ms, bytes;
    for (int round = 0; round < kRounds; ++round) {
      log.info("{} ranks: round {} of {}", ranks, round + 1, kRounds);
      for (const Results& results : {run_ours(ranks, options.scratch), run_gloo(ranks, python, options)})
        for (const auto& [which, one] : results) {
          ms[which].push_back(one.ms);
          bytes[which].push_back(static_cast<double>(one.bytes));
        }
    }
    for (const int64_t kv_heads : {kHeads, kHeads / 4}) {
      const std::pair<std::string, int64_t> peer{"gloo", kv_heads};
      for (const auto& [which, times] : ms) {
        if (which.second != kv_heads || which.first == "gloo") continue;
        const bool chosen = which.first == "auto";
        const std::string name = fmt::format("{}, {} ranks, {} of {} key heads", which.first, ranks, kv_heads, kHeads);
        rows.push_back(compare(name, times, ms[peer], "ms", Better::lower, chosen ? 1.25 : 0));
        rows.push_back(compare(name + ", bytes", bytes[which], bytes[peer], "B", Better::lower, chosen ? 1 : 0));
      }
    }
  }
  if (rows.empty()) base::fail_input("--case {}: the cases are cp-2 and cp-4", options.only);
  return rows;
}

}  // namespace cairn::study
