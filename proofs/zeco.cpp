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
#include "proofs/layout_run.h"
#include "proofs/zeco_processes.h"
#include "study/claims.h"
#include "train/layout_trace.h"

namespace cairn::study {
namespace {

using model::LinearForm;

void run_ranks(int ranks, const comm::LocalOptions& options, const std::function<void(comm::World&)>& body) {
  comm::LocalNetwork network(ranks, options);
  for (const std::exception_ptr& error : network.run(body))
    if (error) std::rethrow_exception(error);
}

// 1. Exactness against the recurrence in one process.

// x of a sequence, its projections q, k, v and log decays, and what autograd makes of the recurrence in fp64.
struct Sequence {
  static constexpr size_t kParts = 4;  // q, k, v, log decays
  at::Tensor x, documents, dout, out;
  std::vector<at::Tensor> weights;    // of the parts
  std::vector<at::Tensor> gradients;  // of the parts, then of the weights
  double decay = 0;                   // mean
};

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

constexpr int64_t kBatch = 1, kLength = 411, kWidthIn = 12, kHeads = 2, kKeys = 16, kValues = 24;

// The parts of all tokens of x; the log decays are -|z|, scaled.
std::vector<at::Tensor> projected(const at::Tensor& x, const std::vector<at::Tensor>& weights, double decay) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& weight : weights) parts.push_back(at::matmul(x, weight).unflatten(2, {kHeads, weight.size(1) / kHeads}));
  parts.back() = parts.back().abs() * (1.2533 * decay);
  return parts;
}

Sequence make_sequence(uint64_t seed, at::ScalarType dtype, double decay, const std::vector<int64_t>& starts) {
  Sequence s;
  s.decay = decay;
  s.x = normal({kBatch, kLength, kWidthIn}, seed, dtype);
  for (const int64_t width : {kKeys, kKeys, kValues, kKeys})
    s.weights.push_back(normal({kWidthIn, kHeads * width}, seed + 1 + s.weights.size(), dtype) / std::sqrt(static_cast<double>(kWidthIn)));
  s.dout = normal({kBatch, kLength, kHeads, kValues}, seed + 9, dtype);
  kernels::LinearAttention plain;
  if (!starts.empty()) {
    s.documents = at::zeros({kBatch, kLength}, at::kLong);
    plain.starts = at::zeros({kBatch, kLength}, at::kBool);
    for (const int64_t start : starts) s.documents.slice(1, start) += 1, plain.starts.select(1, start).fill_(true);
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& weight : s.weights) weights.push_back(weight.to(at::kDouble).clone().set_requires_grad(true));
  const std::vector<at::Tensor> parts = projected(s.x.to(at::kDouble), weights, decay);
  plain.q = parts[0], plain.k = parts[1], plain.v = parts[2], plain.log_decay = parts[3];
  const at::Tensor out = kernels::reference::linear_attention(plain).out;
  std::vector<at::Tensor> inputs = parts;
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  s.gradients = torch::autograd::grad({out}, inputs, {s.dout.to(at::kDouble)});
  s.out = out.detach();
  return s;
}

// The largest relative error of outputs, and of gradients of q, k, v, log decays and the weights that make them, on any rank.
double error_on(int ranks, const Sequence& s, LinearForm form) {
  std::vector<double> worst(static_cast<size_t>(ranks));
  const std::vector<int64_t> cuts = comm::even_counts(kLength, ranks);
  run_ranks(ranks, {}, [&](comm::World& world) {
    const auto me = static_cast<size_t>(world.rank());
    int64_t begin = 0;
    for (size_t r = 0; r < me; ++r) begin += cuts[r];
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, cuts[me]); };
    const at::Tensor x = part(s.x);
    const std::vector<at::Tensor> parts = projected(x, s.weights, s.decay);
    kernels::LinearAttention on{parts[0], parts[1], parts[2], parts[3]};
    comm::Group& group = world.everyone();
    if (s.documents.defined())
      on.starts = model::document_starts(part(s.documents), begin > 0 ? s.documents.select(1, begin - 1) : at::Tensor());
    const model::LinearContext context{.group = &group, .form = form};
    const at::Tensor out = at::empty_like(on.v), dg = at::empty(on.q.sizes(), on.q.options());
    const kernels::LinearGradients d{at::empty_like(on.q), at::empty_like(on.k), at::empty_like(on.v)};
    const model::LinearBorders borders = model::linear_attention(out, on, context);
    model::linear_attention_backward(d, dg, on, part(s.dout), borders.initial, context);
    const auto compare = [&](const at::Tensor& found, const at::Tensor& expected, const at::Tensor& all) {
      worst[me] = std::max(worst[me], ((found.to(at::kDouble) - expected).abs().max() / all.abs().max().clamp_min(1e-30)).item<double>());
    };
    compare(out, part(s.out), s.out);
    const std::vector<at::Tensor> found{d.q, d.k, d.v, dg};
    for (size_t i = 0; i < Sequence::kParts; ++i) {
      if (i == 3 && s.decay == 0) continue;
      compare(found[i], part(s.gradients[i]), s.gradients[i]);
      at::Tensor dz = found[i];
      if (i == 3) dz = dz * at::matmul(x, s.weights[i]).sign().view(dz.sizes()) * (1.2533 * s.decay);
      const at::Tensor dweight = at::matmul(x.flatten(0, 1).t(), dz.flatten(2).flatten(0, 1)).contiguous();
      group.all_reduce(dweight, comm::Reduce::sum, {comm::Purpose::gradient, "weight"}).wait();
      compare(dweight, s.gradients[Sequence::kParts + i], s.gradients[Sequence::kParts + i]);
    }
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
      findings.at_most(fmt::format("1. {}, {}: largest error of outputs and gradients, of weights too, on 1, 2, 3, 5, 8 ranks, all forms", kind.name,
                                   dtype == at::kDouble ? "fp64" : "fp32"),
                       0, worst, dtype == at::kDouble ? 1e-9 : 1e-5);
    }
}

// A model of two layers through the trainer, packed documents, against one rank.
void exactness_of_training(const ProofOptions& options, Findings& findings) {
  const auto traced = [&](int ranks, const Assignments& sets) {
    train::LayoutTrace trace;
    run_ranks(ranks, {}, [&](comm::World& world) {
      Assignments all{"model.kind=gla", "model.layers=2", "data.packing=separate"};
      all.insert(all.end(), sets.begin(), sets.end());
      train::LayoutTrace own = train::trace_layout(world, small_decoder(options, all), {.steps = 2, .plant = {}, .cache = {}});
      if (world.rank() == 0) trace = std::move(own);
    });
    return trace;
  };
  const train::LayoutTrace one = traced(1, {});
  int differing = 0;
  for (const int ranks : {2, 3, 5, 8}) {
    const train::Difference found =
        train::first_difference(traced(ranks, {fmt::format("mesh.cp={}", ranks), "context.balanced=false"}), one, 1e-5);
    differing += found.step != 0 ? 1 : 0;
  }
  findings.at_most("1. two layers in training, packed documents: numbers of ranks (2, 3, 5, 8) whose losses, gradients or parameters differ "
                   "from one rank's by 1e-5",
                   0, differing, 0);
}

// 2. The collective: 4 heads of 128 x 256 (512 KiB), cards of 80 Mbit/s, 1 ms.

constexpr int64_t kRows = 512, kWidth = 256, kState = 4 * kRows * kWidth;

comm::LocalOptions slow_cards() {
  comm::LocalOptions options;
  options.link = {
      .latency = std::chrono::milliseconds(1), .bytes_per_s = 10e6, .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  return options;
}

// Until the last rank is done.
double seconds_of(int ranks,
                  const std::function<comm::Work(comm::World&, std::vector<float>&, std::vector<float>&, std::vector<float>&)>& act) {
  std::vector<double> ended(static_cast<size_t>(ranks));
  run_ranks(ranks, slow_cards(), [&](comm::World& world) {
    std::vector<float> before(kRows * kWidth), state(kRows * kWidth, 1.0f), factors(kRows, 0.5f);
    const auto begun = world.clock().now();
    act(world, before, state, factors).wait();
    ended[static_cast<size_t>(world.rank())] = base::seconds(world.clock().now() - begun);
  });
  return *std::max_element(ended.begin(), ended.end());
}

double scan(int ranks, int64_t blocks) {
  return seconds_of(ranks, [blocks](comm::World& world, std::vector<float>& before, std::vector<float>& state, std::vector<float>& factors) {
    return world.everyone().all_scan({before.data(), kRows * kWidth, comm::Dtype::f32}, {state.data(), kRows * kWidth, comm::Dtype::f32},
                                     comm::make_diagonal_map(factors.data(), kRows, kWidth, comm::Dtype::f32), {.blocks = blocks},
                                     {comm::Purpose::activation, "states"});
  });
}

double gather(int ranks) {
  return seconds_of(ranks, [ranks](comm::World& world, std::vector<float>& before, std::vector<float>& state, std::vector<float>&) {
    before.resize(static_cast<size_t>(ranks) * kRows * kWidth);
    return world.everyone().all_gather({before.data(), ranks * kRows * kWidth, comm::Dtype::f32},
                                       {state.data(), kRows * kWidth, comm::Dtype::f32}, {comm::Purpose::activation, "states"});
  });
}

void collective(Findings& findings, base::Log& log) {
  log.info("the collective");
  const double piped = scan(8, 16), plain = scan(8, 1), gathered = gather(8);
  findings.at_least("2. simulated: 8 ranks, cards of 80 Mbit/s, 1 ms: time of an all-gather of the states to that of an all-scan in 16 blocks",
                    gathered, gathered / piped, 3);
  findings.at_least("2. simulated: likewise, of a chain without blocks", plain, plain / piped, 3);
  const double formula = 22 * (static_cast<double>(kState) / 16 / 10e6 + 1e-3);
  findings.at_most("2. simulated: difference of the time from the formula (K + P - 2) (S / (K B) + l), relative", formula,
                   std::abs(piped / formula - 1), 0.25);
}

// 3, 4. A layer whose work within chunks takes `compute_s` of virtual time, in steps between which messages move.

struct Layer {
  int ranks;
  LinearForm form = LinearForm::zeco;
  double compute_s = 0;
  bool communicates = true;
  bool backward = false;  // after the forward pass
  int64_t heads = 4, key_dim = 128, value_dim = kWidth, blocks = 0;
};

double layer_seconds(const Layer& layer, const comm::LocalOptions& options) {
  constexpr int64_t kTokens = 32, kChunk = 16;  // few: time is declared, and 256 ranks share one memory
  std::vector<double> ended(static_cast<size_t>(layer.ranks));
  run_ranks(layer.ranks, options, [&](comm::World& world) {
    const at::Tensor keys = at::ones({1, kTokens, layer.heads, layer.key_dim}), values = at::ones({1, kTokens, layer.heads, layer.value_dim});
    kernels::LinearAttention on{keys, keys, values, at::full(keys.sizes(), -0.1)};
    on.chunk = kChunk;
    int64_t steps = 0;
    kernels::attend_within_chunks(at::empty_like(values), on, [&] { ++steps; });
    const std::chrono::nanoseconds step(static_cast<int64_t>(layer.compute_s / static_cast<double>(steps) * 1e9));
    const model::LinearContext context{.group = layer.communicates ? &world.everyone() : nullptr,
                                       .form = layer.form,
                                       .blocks = layer.blocks,
                                       .between = [&] { world.timer(world.clock().now() + step).wait(); }};
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
    findings.at_most(fmt::format("3. simulated: a layer on 8 ranks, {}: time to that without communication", passes), none,
                     seconds(LinearForm::zeco, true) / none, 1.1);
    findings.at_least(fmt::format("3. simulated: likewise with lasp2, {}", passes), none, seconds(LinearForm::lasp2, true) / none, 1.4);
  }
}

// 16K tokens of a layer on each rank take 20 ms within chunks; 16 heads of 128 x 256, cards of 100 Gbit/s, 5 us. States and bandwidth are
// both 512 times smaller here, which leaves all times as they are.
void weak_scaling(Findings& findings, base::Log& log) {
  constexpr double kSmaller = 512;
  comm::LocalOptions options;
  options.link = {.latency = std::chrono::microseconds(5),
                  .bytes_per_s = 12.5e9 / kSmaller,
                  .jitter = 0,
                  .contention = comm::LinkModel::Contention::per_nic};
  const auto seconds = [&](int ranks, LinearForm form) {
    const double found = layer_seconds(
        {.ranks = ranks, .form = form, .compute_s = 0.02, .heads = 1, .key_dim = 32, .value_dim = 32, .blocks = 32}, options);
    log.info("weak scaling, {} ranks: {:.4f} s", ranks, found);
    return found;
  };
  const double one = seconds(1, LinearForm::zeco), many = seconds(256, LinearForm::zeco);
  findings.at_most("4. simulated weak scaling: time of a layer on 256 ranks to that on one, zeco", one, many / one, 1.15);
  findings.at_least("4. likewise: time with lasp2 to that with zeco, 256 ranks", many, seconds(256, LinearForm::lasp2) / many, 1.5);
  const double eight = seconds(8, LinearForm::lasp1), sixteen = seconds(16, LinearForm::lasp1);
  findings.at_least("4. likewise: time with lasp1 on 16 ranks to that on 8", eight, sixteen / eight, 1.8);
}

}  // namespace

void prove_zeco(const ProofOptions& options, Findings& findings, base::Log& log) {
  zeco_collective_of_processes(options, findings, log);  // processes are forked while this one is young
  zeco_overlap_of_processes(options, findings, log);
  exactness(options, findings, log);
  exactness_of_training(options, findings);
  collective(findings, log);
  overlap(findings, log);
  weak_scaling(findings, log);
}

}  // namespace cairn::study
