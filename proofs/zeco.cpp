// ZeCO: linear attention on sequences that are cut over ranks. A state per rank travels in an all-scan (comm/collectives/all_scan.cpp),
// behind the part of the layer that needs no state from outside (model/context/linear_attention.h).
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/affine_map.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/context/linear_attention.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

using model::LinearForm;

void run_ranks(int ranks, const comm::LocalOptions& options, const std::function<void(comm::World&)>& body,
               const std::function<void(const comm::LocalNetwork&)>& look = {}) {
  comm::LocalNetwork network(ranks, options);
  for (const std::exception_ptr& error : network.run(body))
    if (error) std::rethrow_exception(error);
  if (look) look(network);
}

// 1. Exactness against the recurrence in one process.

struct Sequence {
  kernels::LinearAttention on;
  at::Tensor documents, dout, out;
  std::vector<at::Tensor> gradients;  // of q, k, v and the log decays
};

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

Sequence make_sequence(uint64_t seed, at::ScalarType dtype, double decay, const std::vector<int64_t>& starts) {
  constexpr int64_t kBatch = 1, kLength = 411, kHeads = 2, kKeys = 16, kValues = 24;
  Sequence s;
  s.on = {normal({kBatch, kLength, kHeads, kKeys}, seed, dtype), normal({kBatch, kLength, kHeads, kKeys}, seed + 1, dtype),
          normal({kBatch, kLength, kHeads, kValues}, seed + 2, dtype)};
  s.on.log_decay = normal(s.on.q.sizes(), seed + 3, dtype).abs() * (1.2533 * decay);
  s.dout = normal(s.on.v.sizes(), seed + 4, dtype);
  if (!starts.empty()) {
    s.documents = at::zeros({kBatch, kLength}, at::kLong);
    s.on.starts = at::zeros({kBatch, kLength}, at::kBool);
    for (const int64_t start : starts) s.documents.slice(1, start) += 1, s.on.starts.select(1, start).fill_(true);
  }
  kernels::LinearAttention plain = s.on;
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).clone().set_requires_grad(true); };
  plain.q = leaf(plain.q), plain.k = leaf(plain.k), plain.v = leaf(plain.v), plain.log_decay = leaf(plain.log_decay);
  const at::Tensor out = kernels::reference::linear_attention(plain).out;
  s.gradients = torch::autograd::grad({out}, {plain.q, plain.k, plain.v, plain.log_decay}, {s.dout.to(at::kDouble)});
  s.out = out.detach();
  return s;
}

// The largest relative error of outputs and gradients on any rank.
double error_on(int ranks, const Sequence& s, LinearForm form) {
  std::vector<double> worst(static_cast<size_t>(ranks));
  const std::vector<int64_t> cuts = comm::even_counts(s.on.q.size(1), ranks);
  run_ranks(ranks, {}, [&](comm::World& world) {
    const auto me = static_cast<size_t>(world.rank());
    int64_t begin = 0;
    for (size_t r = 0; r < me; ++r) begin += cuts[r];
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, cuts[me]); };
    kernels::LinearAttention on{part(s.on.q), part(s.on.k), part(s.on.v), part(s.on.log_decay)};
    comm::Group& group = world.everyone();
    if (s.documents.defined()) on.starts = model::document_starts(part(s.documents), &group);
    const model::LinearContext context{&group, form, 0, {}};
    const at::Tensor out = at::empty_like(on.v), dg = at::empty(on.q.sizes(), on.q.options());
    const kernels::LinearGradients d{at::empty_like(on.q), at::empty_like(on.k), at::empty_like(on.v)};
    const model::LinearBorders borders = model::linear_attention(out, on, context);
    model::linear_attention_backward(d, dg, on, part(s.dout), borders.initial, context);
    const std::vector<at::Tensor> found{out, d.q, d.k, d.v, dg},
        expected{s.out, s.gradients[0], s.gradients[1], s.gradients[2], s.gradients[3]};
    for (size_t i = 0; i < found.size(); ++i)
      worst[me] =
          std::max(worst[me], ((found[i].to(at::kDouble) - part(expected[i])).abs().max() / expected[i].abs().max()).item<double>());
  });
  return *std::max_element(worst.begin(), worst.end());
}

void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("exactness");
  struct Kind {
    const char* name;
    double decay;
    std::vector<int64_t> starts;
  };
  const std::vector<Kind> kinds{{"no decay", 0, {}},
                                {"decay of mean 0.05", -0.05, {}},
                                {"decay of mean 2, whose inverse overflows", -2, {}},
                                {"documents that start inside slices and on borders of 3 and 5 ranks", -0.05, {20, 83, 137, 300}}};
  for (const Kind& kind : kinds)
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const Sequence sequence = make_sequence(options.seed * 100, dtype, kind.decay, kind.starts);
      double worst = 0;
      for (const int ranks : {1, 2, 3, 5, 8})
        for (const LinearForm form : {LinearForm::zeco, LinearForm::lasp1, LinearForm::lasp2})
          worst = std::max(worst, error_on(ranks, sequence, form));
      findings.at_most(fmt::format("1. {}, {}: largest error of outputs and gradients on 1, 2, 3, 5, 8 ranks, all forms", kind.name,
                                   dtype == at::kDouble ? "fp64" : "fp32"),
                       0, worst, dtype == at::kDouble ? 1e-9 : 1e-5);
    }
}

// 2. The collective: 4 heads of 128 x 256 (512 KiB), cards of 80 Mbit/s, 1 ms.

constexpr int64_t kRows = 512, kWidth = 256, kState = 4 * kRows * kWidth;

comm::LocalOptions slow_cards() {
  comm::LocalOptions options;
  options.link = {
      .latency = std::chrono::milliseconds(1), .bytes_per_s = 10e6, .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  return options;
}

struct Cost {
  double seconds = 0;
  int64_t bytes_most = 0, bytes_least = 0;  // sent by a rank but the last
};

Cost cost_of(int ranks, const std::function<comm::Work(comm::World&, std::vector<float>&, std::vector<float>&, std::vector<float>&)>& act) {
  std::vector<double> ended(static_cast<size_t>(ranks));
  Cost cost;
  run_ranks(
      ranks, slow_cards(),
      [&](comm::World& world) {
        std::vector<float> before(kRows * kWidth), state(kRows * kWidth, 1.0f), factors(kRows, 0.5f);
        const auto begun = world.clock().now();
        act(world, before, state, factors).wait();
        ended[static_cast<size_t>(world.rank())] = base::seconds(world.clock().now() - begun);
      },
      [&](const comm::LocalNetwork& network) {
        cost.bytes_least = 1L << 60;
        for (int rank = 0; rank + 1 < ranks; ++rank) {
          const int64_t sent = network.ledger().bytes_sent(rank, comm::Purpose::activation);
          cost.bytes_most = std::max(cost.bytes_most, sent), cost.bytes_least = std::min(cost.bytes_least, sent);
        }
      });
  cost.seconds = *std::max_element(ended.begin(), ended.end());
  return cost;
}

Cost scan(int ranks, int64_t blocks) {
  return cost_of(ranks, [blocks](comm::World& world, std::vector<float>& before, std::vector<float>& state, std::vector<float>& factors) {
    return world.everyone().all_scan({before.data(), kRows * kWidth, comm::Dtype::f32}, {state.data(), kRows * kWidth, comm::Dtype::f32},
                                     comm::make_diagonal_map(factors.data(), kRows, kWidth, comm::Dtype::f32), {.blocks = blocks},
                                     {comm::Purpose::activation, "states"});
  });
}

Cost gather(int ranks) {
  return cost_of(ranks, [ranks](comm::World& world, std::vector<float>& before, std::vector<float>& state, std::vector<float>&) {
    before.resize(static_cast<size_t>(ranks) * kRows * kWidth);
    return world.everyone().all_gather({before.data(), ranks * kRows * kWidth, comm::Dtype::f32},
                                       {state.data(), kRows * kWidth, comm::Dtype::f32}, {comm::Purpose::activation, "states"});
  });
}

void collective(Findings& findings, base::Log& log) {
  log.info("the collective");
  const double piped = scan(8, 16).seconds, plain = scan(8, 1).seconds, gathered = gather(8).seconds;
  findings.at_least("2. 8 ranks, cards of 80 Mbit/s, 1 ms: time of an all-gather of the states to that of an all-scan in 16 blocks",
                    gathered, gathered / piped, 3);
  findings.at_least("2. likewise, of a chain without blocks", plain, plain / piped, 3);
  const double formula = 22 * (static_cast<double>(kState) / 16 / 10e6 + 1e-3);
  findings.at_most("2. difference of the measured time from the formula (K + P - 2) (S / (K B) + l), relative", formula,
                   std::abs(piped / formula - 1), 0.25);
  for (const int ranks : {4, 8}) {
    const Cost cost = scan(ranks, 16);
    findings.at_most(fmt::format("2. states sent by a rank of {} (most)", ranks), 1,
                     static_cast<double>(cost.bytes_most) / static_cast<double>(kState), 1);
    findings.at_least(fmt::format("2. states sent by a rank of {}, but for the last (least)", ranks), 1,
                      static_cast<double>(cost.bytes_least) / static_cast<double>(kState), 1);
  }
}

// 3, 4. A layer whose work within chunks takes `compute_s` of virtual time, in steps between which messages move.

struct Layer {
  int ranks;
  LinearForm form = LinearForm::zeco;
  double compute_s = 0;
  bool communicates = true;
  bool backward = false;  // after the forward pass
};

double layer_seconds(const Layer& layer, const comm::LocalOptions& options) {
  constexpr int64_t kHeads = 4, kTokens = 32, kChunk = 16;  // few: time is declared, and 256 ranks share one memory
  std::vector<double> ended(static_cast<size_t>(layer.ranks));
  run_ranks(layer.ranks, options, [&](comm::World& world) {
    const at::Tensor keys = at::ones({1, kTokens, kHeads, 128}), values = at::ones({1, kTokens, kHeads, kWidth});
    kernels::LinearAttention on{keys, keys, values, at::full(keys.sizes(), -0.1)};
    on.chunk = kChunk;
    int64_t steps = 0;
    kernels::attend_within_chunks(at::empty_like(values), on, [&] { ++steps; });
    const std::chrono::nanoseconds step(static_cast<int64_t>(layer.compute_s / static_cast<double>(steps) * 1e9));
    const model::LinearContext context{layer.communicates ? &world.everyone() : nullptr, layer.form, 0,
                                       [&] { world.timer(world.clock().now() + step).wait(); }};
    const at::Tensor out = at::empty_like(values);
    const auto begun = world.clock().now();
    const model::LinearBorders borders = model::linear_attention(out, on, context);
    if (layer.backward)
      model::linear_attention_backward({at::empty_like(keys), at::empty_like(keys), at::empty_like(values)}, at::empty_like(keys), on, out,
                                       borders.initial, context);
    ended[static_cast<size_t>(world.rank())] = base::seconds(world.clock().now() - begun);
  });
  return *std::max_element(ended.begin(), ended.end());
}

void overlap(Findings& findings, base::Log& log) {
  log.info("overlap");
  const double compute_s = 0.12;  // the all-scan takes 0.08 s
  for (const bool backward : {false, true}) {
    const auto seconds = [&](LinearForm form, bool communicates) {
      return layer_seconds({8, form, compute_s, communicates, backward}, slow_cards());
    };
    const double none = seconds(LinearForm::zeco, false);
    const char* passes = backward ? "forward and backward" : "forward";
    findings.at_most(fmt::format("3. layer on 8 ranks, {}: time to that without communication", passes), none,
                     seconds(LinearForm::zeco, true) / none, 1.1);
    findings.at_least(fmt::format("3. likewise with lasp2, {}", passes), none, seconds(LinearForm::lasp2, true) / none, 1.4);
  }
}

// Links of 25 GB/s and 5 us, 16K tokens of a layer on each rank in 20 ms.
void weak_scaling(Findings& findings, base::Log& log) {
  comm::LocalOptions options;
  options.link = {
      .latency = std::chrono::microseconds(5), .bytes_per_s = 25e9, .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  const auto seconds = [&](int ranks, LinearForm form) {
    const double found = layer_seconds({ranks, form, 0.02}, options);
    log.info("{} ranks: {:.4f} s", ranks, found);
    return found;
  };
  const double one = seconds(1, LinearForm::zeco), many = seconds(256, LinearForm::zeco);
  findings.at_most("4. weak scaling: time of a layer on 256 ranks to that on one, zeco", one, many / one, 1.15);
  const double eight = seconds(8, LinearForm::lasp1), sixteen = seconds(16, LinearForm::lasp1);
  findings.at_least("4. lasp1: time on 16 ranks to that on 8", eight, sixteen / eight, 1.8);
  const double gathered = seconds(32, LinearForm::lasp2), scanned = seconds(32, LinearForm::zeco);
  findings.at_least("4. lasp2 to zeco, what a layer on 32 ranks takes", scanned, gathered / scanned, 1);
}

}  // namespace

void prove_zeco(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  collective(findings, log);
  overlap(findings, log);
  weak_scaling(findings, log);
}

}  // namespace cairn::study
