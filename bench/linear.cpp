// `cairn bench linear`: gated linear attention, forward and backward.
//   kernel   chunks against the recurrence token by token, in plain libtorch operations; 1 thread and all
//   cp       zeco on 4 ranks (processes, 1 thread each, cards of 200 Mbit/s and 1 ms) against lasp1, lasp2, and against as many ranks that
//            have a sequence of that length each and send nothing
#include <algorithm>
#include <functional>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/context/linear_attention.h"
#include "study/benches.h"
#include "study/forked_ranks.h"

namespace cairn::study {
namespace {

using model::LinearForm;

constexpr int kRounds = 3;

double ms_of(const std::function<void()>& act) {
  const base::RealClock clock;
  const auto begun = clock.now();
  act();
  return base::seconds(clock.now() - begun) * 1e3;
}

struct LinearTensors {
  kernels::LinearAttention on;
  at::Tensor dout, out, dg;
  kernels::LinearGradients into;

  LinearTensors(int64_t tokens, int64_t heads, int64_t key_dim, int64_t value_dim, int64_t chunk) {
    const at::Tensor keys = at::randn({1, tokens, heads, key_dim}), values = at::randn({1, tokens, heads, value_dim});
    on.q = keys, on.k = at::randn(keys.sizes()), on.v = values, on.log_decay = at::rand(keys.sizes()) / -16;
    on.chunk = chunk;
    dout = at::randn(values.sizes()), out = at::empty_like(values), dg = at::empty_like(keys);
    into = {at::empty_like(keys), at::empty_like(keys), at::empty_like(values)};
  }
  void both_passes(const model::LinearContext& context) const {
    const model::LinearBorders borders = model::linear_attention(out, on, context);
    model::linear_attention_backward(into, dg, on, dout, borders.initial, context);
  }
};

void add_kernel_rows(std::vector<BenchRow>& rows, base::Log& log) {
  const LinearTensors t(512, 4, 64, 128, 64);
  kernels::LinearAttention plain = t.on;
  for (at::Tensor* x : {&plain.q, &plain.k, &plain.v, &plain.log_decay}) *x = x->detach().clone().set_requires_grad(true);
  for (const int threads : {1, at::get_num_threads()}) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    std::vector<double> ours, forward, peer, peer_forward;
    for (int round = 0; round <= kRounds; ++round) {
      const double both = ms_of([&] { t.both_passes({}); });
      const double one = ms_of([&] { model::linear_attention(t.out, t.on, {}); });
      const double loop = ms_of([&] { kernels::reference::linear_attention(t.on); });
      const double loops = ms_of([&] {
        const at::Tensor out = kernels::reference::linear_attention(plain).out;
        torch::autograd::grad({out}, {plain.q, plain.k, plain.v, plain.log_decay}, {t.dout});
      });
      if (round == 0) continue;  // warm-up
      ours.push_back(both), forward.push_back(one), peer.push_back(loops), peer_forward.push_back(loop);
    }
    at::set_num_threads(before);
    const std::string where = fmt::format("512 tokens, 4 heads of 64 x 128, {} thread{}", threads, threads == 1 ? "" : "s");
    rows.push_back(compare("kernel, forward, " + where, forward, peer_forward, "ms", Better::lower, 5));
    rows.push_back(compare("kernel, forward and backward, " + where, ours, peer, "ms", Better::lower, 5));
    log.info("kernel, {} threads: {:.1f} ms, token by token {:.1f} ms", threads, ours.back(), peer.back());
    if (before == 1) break;
  }
}

void add_rank_rows(std::vector<BenchRow>& rows, const BenchOptions& options, base::Log& log) {
  constexpr int kRanks = 4;
  const comm::LinkModel cards{
      .latency = std::chrono::milliseconds(1), .bytes_per_s = 25e6, .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  enum Kind : size_t { kZeco, kLasp1, kLasp2, kSeparate, kKinds };
  const auto found = on_forked_ranks(kRanks, cards, options.scratch, [](comm::World& world) {
    const LinearTensors t(2048, 4, 128, 256, 64);
    std::vector<double> times;
    for (int round = 0; round <= kRounds; ++round)
      for (size_t kind = 0; kind < kKinds; ++kind) {
        const LinearForm form = kind == kLasp1 ? LinearForm::lasp1 : kind == kLasp2 ? LinearForm::lasp2 : LinearForm::zeco;
        world.everyone().barrier().wait_host();
        double took = ms_of([&] { t.both_passes({.group = kind == kSeparate ? nullptr : &world.everyone(), .form = form}); });
        world.everyone().all_reduce({&took, 1, comm::Dtype::f64}, comm::Reduce::max, {comm::Purpose::control, "slowest"}).wait_host();
        if (round > 0) times.push_back(took);
      }
    return times;
  });
  std::vector<std::vector<double>> ms(kKinds);
  for (size_t i = 0; i < found.front().size(); ++i) ms[i % kKinds].push_back(found.front()[i]);
  const char* where = "4 ranks of 2,048 tokens, 4 heads of 128 x 256, 200 Mbit/s";
  rows.push_back(compare(fmt::format("zeco beside lasp1, {}", where), ms[kZeco], ms[kLasp1], "ms", Better::lower, 1));
  rows.push_back(compare(fmt::format("zeco beside lasp2, {}", where), ms[kZeco], ms[kLasp2], "ms", Better::lower, 1));
  rows.push_back(compare(fmt::format("zeco beside ranks that send nothing, {}", where), ms[kZeco], ms[kSeparate], "ms", Better::lower, 0));
  log.info("4 ranks: zeco {:.0f} ms, lasp1 {:.0f}, lasp2 {:.0f}, without messages {:.0f}", ms[kZeco].back(), ms[kLasp1].back(),
           ms[kLasp2].back(), ms[kSeparate].back());
}

}  // namespace

std::vector<BenchRow> bench_linear(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  if (options.only.empty() || options.only == "cp") add_rank_rows(rows, options, log);  // forks while this process is young
  if (options.only.empty() || options.only == "kernel") add_kernel_rows(rows, log);
  if (rows.empty()) base::fail_input("--case {}: the cases are kernel and cp", options.only);
  return rows;
}

}  // namespace cairn::study
