// TokenRing: queries and partial outputs in opposite directions of every link, beside ring attention, both-ways rings, gathers and Ulysses.
// The forms are those that training calls; times are virtual, on links of 50 Mbit/s, where only messages take
// time, or kernels too where it says so.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "mesh/splits.h"
#include "model/context/attention.h"
#include "model/context/choose.h"
#include "parallel/layout/measure_links.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

using model::ContextForm;
using model::ContextMethod;

struct Problem {
  int ranks = 8;
  int64_t length = 2048, heads = 8, kv_heads = 8, head_dim = 64;
  bool causal = true, balanced = true;
  at::ScalarType dtype = at::kFloat;
  uint64_t seed = 1;
  comm::LinkModel link = {.latency = std::chrono::microseconds(20), .bytes_per_s = 50e6 / 8, .jitter = 0};

  kernels::AttentionOptions options() const { return {.causal = causal}; }
  model::ContextSizes sizes() const { return {1, kv_heads, head_dim, 4, false, heads}; }
  model::ContextLinks links() const {
    return {.latency_s = base::seconds(link.latency),
            .bytes_per_s = link.bytes_per_s,
            .shared_card = link.contention == comm::LinkModel::Contention::per_nic};
  }
  model::ContextSplit split() const {
    if (balanced) return {length, mesh::split_zigzag(1, length, ranks).pieces};
    model::ContextSplit contiguous{length, {}};
    for (int c = 0; c < ranks; ++c) contiguous.pieces.push_back({mesh::even_part(length, ranks, c)});
    return contiguous;
  }
};

struct Tensors {
  at::Tensor q, k, v, dout, out, lse, dq, dk, dv;
};

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat)).to(dtype);
}

Tensors whole_of(const Problem& p) {
  Tensors t;
  t.q = normal({1, p.length, p.heads, p.head_dim}, p.seed * 4 + 1, p.dtype);
  t.k = normal({1, p.length, p.kv_heads, p.head_dim}, p.seed * 4 + 2, p.dtype);
  t.v = normal({1, p.length, p.kv_heads, p.head_dim}, p.seed * 4 + 3, p.dtype);
  t.dout = normal(t.q.sizes(), p.seed * 4 + 4, p.dtype);
  return t;
}

void make_room(Tensors& t) {
  t.out = at::empty_like(t.q), t.dq = at::empty_like(t.q), t.dk = at::empty_like(t.k), t.dv = at::empty_like(t.v);
  t.lse = at::empty({1, t.q.size(2), t.q.size(1)}, t.q.options().dtype(t.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
}

at::Tensor cut(const at::Tensor& x, const model::ContextSplit& split, int rank) {
  std::vector<at::Tensor> parts;
  for (const mesh::Interval& piece : split.pieces[static_cast<size_t>(rank)]) parts.push_back(x.narrow(1, piece.begin, piece.length()));
  return at::cat(parts, 1);
}

struct Run {
  double forward_s = 0, backward_s = 0;  // virtual
  double error = 0;                      // largest, absolute (fp32) or relative to the largest element (bf16)
  int64_t bytes = 0;
  double total_s() const { return forward_s + backward_s; }
};

// One call forward and backward on every rank; against `reference` if there is one.
// `flops_per_s`: kernels take declared time; 0: none.
Run run(const Problem& p, const ContextMethod& method, const Tensors& whole, bool compare, double flops_per_s = 0) {
  Run found;
  std::mutex lock;
  const model::ContextSplit split = p.split();
  comm::LocalNetwork network(p.ranks, {.link = p.link});
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         const int rank = world.rank();
         Tensors t{cut(whole.q, split, rank),
                   cut(whole.k, split, rank),
                   cut(whole.v, split, rank),
                   cut(whole.dout, split, rank),
                   {},
                   {},
                   {},
                   {},
                   {}};
         make_room(t);
         const model::AfterKernel spend = [&](double flops) {
           if (flops_per_s > 0) world.timer(world.clock().now() + std::chrono::nanoseconds(std::llround(flops / flops_per_s * 1e9))).wait();
         };
         const auto timed = [&](const auto& act) {
           world.everyone().barrier().wait();
           const auto begun = world.clock().now();
           act();
           return base::seconds(world.clock().now() - begun);
         };
         const double forward = timed([&] {
           model::context_attention(t.out, t.lse, t.q, t.k, t.v, p.options(), nullptr, world.everyone(), split, method, {}, spend);
         });
         const double backward = timed([&] {
           model::context_attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.out, t.lse, p.options(), nullptr, world.everyone(),
                                             split, method, spend);
         });
         double error = 0;
         const std::array<std::pair<at::Tensor, at::Tensor>, 4> pairs{
             {{t.out, whole.out}, {t.dq, whole.dq}, {t.dk, whole.dk}, {t.dv, whole.dv}}};
         for (const auto& [own, all] : pairs) {
           if (!compare) continue;
           const double scale = p.dtype == at::kFloat ? 1 : all.to(at::kFloat).abs().max().item<double>();
           error = std::max(error, (own.to(at::kDouble) - cut(all, split, rank).to(at::kDouble)).abs().max().item<double>() / scale);
         }
         const std::lock_guard guard(lock);
         found = {std::max(found.forward_s, forward), std::max(found.backward_s, backward), std::max(found.error, error), 0};
       }))
    if (error) std::rethrow_exception(error);
  found.bytes = network.ledger().total(comm::Purpose::activation).bytes;
  return found;
}

std::vector<ContextMethod> methods_for(int ranks, int64_t heads) {
  std::vector<ContextMethod> methods{ContextForm::ring, ContextForm::ring_both_ways, ContextForm::gather, ContextForm::token_ring};
  if (heads % ranks == 0) methods.emplace_back(ContextForm::ulysses);
  if (ranks % 2 == 0 && ranks > 2) methods.emplace_back(ContextForm::token_ring, 2);
  return methods;
}

void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("exactness");
  std::map<std::string, double> worst, worst_half;
  for (const bool causal : {true, false})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const int ranks : {1, 2, 3, 4, 8}) {
        const Problem p{.ranks = ranks, .length = ranks == 8 ? 2048 : 487, .causal = causal, .dtype = dtype, .seed = options.seed};
        Tensors whole = whole_of(p), exact = whole;  // exact: in double precision on one process
        for (at::Tensor* one : {&exact.q, &exact.k, &exact.v, &exact.dout}) *one = one->to(at::kDouble);
        make_room(exact);
        kernels::attention(exact.out, exact.lse, exact.q, exact.k, exact.v, p.options());
        kernels::attention_backward(exact.dq, exact.dk, exact.dv, exact.dout, exact.q, exact.k, exact.v, exact.out, exact.lse, p.options());
        whole.out = exact.out, whole.dq = exact.dq, whole.dk = exact.dk, whole.dv = exact.dv;
        for (const ContextMethod& method : methods_for(ranks, p.heads)) {
          const std::string name = method.ulysses > 1 ? "ulysses with token_ring" : model::to_string(method, ranks);
          double& most = (dtype == at::kFloat ? worst : worst_half)[name];
          most = std::max(most, run(p, method, whole, true).error);
        }
      }
  for (const auto& [name, error] : worst)
    findings.at_most(fmt::format("1. {}, 1 to 8 ranks, both masks, fp32: largest error of out, dq, dk, dv", name), 0, error, 1e-5);
  for (const auto& [name, error] : worst_half)
    findings.at_most(fmt::format("1. {}, likewise in bf16, of the largest element", name), 0, error, 2e-2);
}

// What all ranks send forward and backward in fp32, under a causal mask and the zigzag split: a part of each coordinate's rows travels, on
// the average over distances (the half rule).
std::vector<std::pair<ContextMethod, double>> byte_formulas(const Problem& p) {
  const double n = p.ranks, head = 4.0 * static_cast<double>(p.length), q = head * static_cast<double>(p.heads * p.head_dim),
               kv = 2 * head * static_cast<double>(p.kv_heads * p.head_dim), statistic = head * static_cast<double>(p.heads);
  return {{ContextForm::ring, (n - 1) * 3 * kv},
          {ContextForm::gather, (n - 1) * 3 * kv},
          {ContextForm::ring_both_ways, 0.75 * (n - 1) * 3 * kv},
          {ContextForm::token_ring, 0.75 * (n - 1) * (2 * q + statistic + 3 * q + 2 * statistic)},
          {ContextForm::ulysses, (n - 1) / n * (5 * q + 3 * kv + 3 * statistic)}};
}

void speed(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("speed");
  const Problem p{.seed = options.seed};
  const Tensors whole = whole_of(p);
  const Run ring = run(p, ContextForm::ring, whole, false), token_ring = run(p, ContextForm::token_ring, whole, false);
  findings.at_least("2. 8 ranks, 50 Mbit/s per pair, as many key heads as query heads: forward, ring to token_ring", 1,
                    ring.forward_s / token_ring.forward_s, 1.45);
  findings.at_least("2. likewise, forward and backward", 1, ring.total_s() / token_ring.total_s(), 1.4);
  for (const auto& [method, formula] : byte_formulas(p)) {
    const double ratio = static_cast<double>(run(p, method, whole, false).bytes) / formula;
    findings.at_most(fmt::format("2. {}: bytes sent over those of the formula, distance from 1", model::to_string(method, 8)), 0,
                     std::abs(ratio - 1), 0.05);
  }
  Problem card = p;
  card.link.contention = comm::LinkModel::Contention::per_nic;
  const model::ContextChoices choices = model::choose_context(card.sizes(), card.options(), card.split(), card.links());
  findings.at_most("2. where cards are shared: auto chooses token_ring (1: yes)", 0, choices.best().form == ContextForm::token_ring, 0);
  findings.at_most("2. where cards are shared: ring to token_ring, forward", 1,
                   run(card, ContextForm::ring, whole, false).forward_s / run(card, ContextForm::token_ring, whole, false).forward_s, 1.1);
}

void grouped_heads(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("grouped heads");
  const Problem p{.kv_heads = 2, .seed = options.seed};
  const Tensors whole = whole_of(p);
  const model::ContextChoices choices = model::choose_context(p.sizes(), p.options(), p.split(), p.links());
  findings.at_most("3. a quarter of the key heads: auto chooses token_ring (1: yes)", 0, choices.best().form == ContextForm::token_ring, 0);
  findings.at_least("3. likewise: token_ring to ring, time forward and backward", 1,
                    run(p, ContextForm::token_ring, whole, false).total_s() / run(p, ContextForm::ring, whole, false).total_s(), 1.1);
}

// What training measures before it chooses.
model::ContextLinks measured(const Problem& p) {
  model::ContextLinks links;
  comm::LocalNetwork network(p.ranks, {.link = p.link});
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         const model::ContextLinks own = parallel::measure_context_links(world.everyone(), world.everyone(), c10::Device(c10::kCPU));
         if (world.rank() == 0) links = own;
       }))
    if (error) std::rethrow_exception(error);
  return links;
}

// auto against every form that works, on six links that it measures.
void choice(const ProofOptions& options, Findings& findings, base::Log& log) {
  using comm::LinkModel;
  for (const bool shared : {false, true})
    for (const double mbit : {10.0, 50.0, 1000.0}) {
      Problem p{.length = 512, .kv_heads = 4, .head_dim = 32, .seed = options.seed};
      p.link.bytes_per_s = mbit * 1e6 / 8;
      if (mbit > 100) p.link.latency = std::chrono::milliseconds(2);
      if (shared) p.link.contention = LinkModel::Contention::per_nic;
      const Tensors whole = whole_of(p);
      const model::ContextChoices choices = model::choose_context(p.sizes(), p.options(), p.split(), measured(p));
      log.info("{}", choices.why);
      double best = 1e9, chosen = 0;
      for (const model::ContextChoice& one : choices.all) {
        const double took = run(p, one.method, whole, false).total_s();
        best = std::min(best, took);
        if (one.method == choices.best()) chosen = took;
      }
      findings.at_most(fmt::format("auto over the best form, 8 ranks, {:.0f} Mbit/s {}", mbit, shared ? "per card" : "per pair"), 1,
                       chosen / best, 1.1);
    }
}

// A chunk of a prompt over a long cache of keys.
void few_queries(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("few queries");
  constexpr int64_t kQueries = 128, kKeys = 8192;
  const Problem p{.length = kKeys, .seed = options.seed};
  model::ContextSplit queries{kKeys, {}};
  for (int64_t c = 0; c < p.ranks; ++c)
    queries.pieces.push_back({{kKeys - kQueries + c * kQueries / p.ranks, kKeys - kQueries + (c + 1) * kQueries / p.ranks}});
  const at::Tensor q = normal({1, kQueries, p.heads, p.head_dim}, p.seed * 4 + 1, p.dtype),
                   k = normal({1, kKeys, p.kv_heads, p.head_dim}, p.seed * 4 + 2, p.dtype), v = normal(k.sizes(), p.seed * 4 + 3, p.dtype),
                   out = at::empty_like(q), lse = at::empty({1, p.heads, kQueries});
  kernels::attention(out, lse, q, k, v, {.query_offset = kKeys - kQueries});
  double worst = 0;
  const auto seconds = [&](const ContextMethod& method) {
    double slowest = 0;
    std::mutex lock;
    comm::LocalNetwork network(p.ranks, {.link = p.link});
    for (const std::exception_ptr& error : network.run([&](comm::World& world) {
           const int64_t each = kQueries / p.ranks, first = world.rank() * each;
           const at::Tensor own = q.narrow(1, first, each).contiguous(), mixed = at::empty_like(own), sums = at::empty({1, p.heads, each});
           const at::Tensor keys = cut(k, p.split(), world.rank()), values = cut(v, p.split(), world.rank());
           world.everyone().barrier().wait();
           const auto begun = world.clock().now();
           model::context_attention_over_cache(mixed, sums, own, keys, values, p.options(), world.everyone(), queries, p.split(), method);
           const double took = base::seconds(world.clock().now() - begun);
           const double error_here = (mixed - out.narrow(1, first, each)).abs().max().item<double>();
           const std::lock_guard guard(lock);
           slowest = std::max(slowest, took), worst = std::max(worst, error_here);
         }))
      if (error) std::rethrow_exception(error);
    return slowest;
  };
  const double ring = seconds(ContextForm::ring), token_ring = seconds(ContextForm::token_ring);
  findings.at_least("2. 128 queries over 8,192 cached keys, 8 ranks: time of moving keys (ring) to moving queries (token_ring)", ring,
                    ring / token_ring, 5);
  findings.at_most("2. likewise: largest error of the output", 0, worst, 1e-5);
  const model::ContextChoices choices = model::choose_context(p.sizes(), p.options(), p.split(), p.links(), &queries);
  findings.at_least("2. likewise: auto chooses token_ring (1: yes)", 0, choices.best().form == ContextForm::token_ring, 1);
}

// Kernels take declared time on the shaped clock, twice that of the messages alone; messages move between kernels.
void overlap(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("overlap");
  const Problem p{.length = 512, .head_dim = 32, .seed = options.seed};
  const Tensors whole = whole_of(p);
  for (const ContextForm form : {ContextForm::ring, ContextForm::ring_both_ways, ContextForm::token_ring})
    for (const bool backward : {false, true}) {
      const auto of = [&](const Run& one) { return backward ? one.backward_s : one.forward_s; };
      const double messages = of(run(p, form, whole, false));
      std::vector<double> work(static_cast<size_t>(p.ranks));
      for (const model::ContextTask& task : model::context_tasks(p.sizes(), p.options(), p.split(), form, backward))
        if (!task.is_message()) work[static_cast<size_t>(task.from)] += task.flops;
      const double rate = *std::max_element(work.begin(), work.end()) / (2 * messages);
      findings.at_most(fmt::format("4. {}, {}: time with computation of twice the messages' time, to that computation",
                                   model::to_string(form, p.ranks), backward ? "backward" : "forward"),
                       2 * messages, of(run(p, form, whole, false, rate)) / (2 * messages), 1.15);
    }
}

void balance(Findings& findings) {
  const auto ratio = [](bool balanced, ContextForm form) {
    const Problem p{.balanced = balanced};
    std::vector<double> busy(static_cast<size_t>(p.ranks));
    for (const model::ContextTask& task : model::context_tasks(p.sizes(), p.options(), p.split(), form, false))
      if (!task.is_message()) busy[static_cast<size_t>(task.from)] += task.flops;
    return *std::max_element(busy.begin(), busy.end()) / *std::min_element(busy.begin(), busy.end());
  };
  for (const ContextForm form : {ContextForm::ring, ContextForm::token_ring}) {
    const std::string name = model::to_string(form, 8);
    findings.at_most(fmt::format("5. {}, zigzag: work of the most loaded rank over the least", name), 1, ratio(true, form), 1.1);
    findings.at_least(fmt::format("5. {}, contiguous: likewise", name), 1, ratio(false, form), 1.5);
  }
}

}  // namespace

void prove_tokenring(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  speed(options, findings, log);
  grouped_heads(options, findings, log);
  few_queries(options, findings, log);
  overlap(options, findings, log);
  balance(findings);
  choice(options, findings, log);
}

}  // namespace cairn::study
