// TokenRing: queries and partial outputs in opposite directions of every link, beside ring attention, both-ways rings, gathers and Ulysses.
// The forms are those that training calls; times are virtual, on links of 50 Mbit/s, where only messages take time.
#include <algorithm>
#include <array>
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
  t.lse = at::empty({1, t.q.size(2), t.q.size(1)}, t.q.options().dtype(at::kFloat));
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
Run run(const Problem& p, const ContextMethod& method, const Tensors& whole, bool compare) {
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
         const auto timed = [&](const auto& act) {
           world.everyone().barrier().wait();
           const auto begun = world.clock().now();
           act();
           return base::seconds(world.clock().now() - begun);
         };
         const double forward =
             timed([&] { model::context_attention(t.out, t.lse, t.q, t.k, t.v, p.options(), nullptr, world.everyone(), split, method); });
         const double backward = timed([&] {
           model::context_attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.out, t.lse, p.options(), nullptr, world.everyone(),
                                             split, method);
         });
         double error = 0;
         const std::array<std::pair<at::Tensor, at::Tensor>, 4> pairs{
             {{t.out, whole.out}, {t.dq, whole.dq}, {t.dk, whole.dk}, {t.dv, whole.dv}}};
         for (const auto& [own, all] : pairs) {
           if (!compare) continue;
           const double scale = p.dtype == at::kFloat ? 1 : all.to(at::kFloat).abs().max().item<double>();
           error = std::max(error, (own.to(at::kFloat) - cut(all, split, rank).to(at::kFloat)).abs().max().item<double>() / scale);
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
        const Problem p{
            .ranks = ranks, .length = 240, .kv_heads = 4, .head_dim = 32, .causal = causal, .dtype = dtype, .seed = options.seed};
        Tensors whole = whole_of(p);
        make_room(whole);
        kernels::attention(whole.out, whole.lse, whole.q, whole.k, whole.v, p.options());
        kernels::attention_backward(whole.dq, whole.dk, whole.dv, whole.dout, whole.q, whole.k, whole.v, whole.out, whole.lse, p.options());
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

void speed(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("speed");
  const Problem p{.length = 1024, .head_dim = 32, .seed = options.seed};
  const Tensors whole = whole_of(p);
  const Run ring = run(p, ContextForm::ring, whole, false), token_ring = run(p, ContextForm::token_ring, whole, false);
  findings.at_least("2. 8 ranks, 50 Mbit/s per pair, as many key heads as query heads: forward, ring to token_ring", 1,
                    ring.forward_s / token_ring.forward_s, 1.45);
  findings.at_least("2. likewise, forward and backward", 1, ring.total_s() / token_ring.total_s(), 1.4);
  for (const ContextMethod& method : methods_for(8, p.heads)) {
    const model::ContextBytes formula = model::context_bytes(p.sizes(), p.options(), p.split(), method);
    const double ratio = static_cast<double>(run(p, method, whole, false).bytes) / static_cast<double>(formula.forward + formula.backward);
    findings.at_most(fmt::format("2. {}: bytes sent over those of the formula, distance from 1", model::to_string(method, 8)), 0,
                     std::abs(ratio - 1), 0.05);
  }
  findings.skip("2. 128 queries against 8,192 cached keys: moving queries 5x faster",
                "training has as many queries as keys on each rank, and generation has no cp axis: no caller has this shape");
  Problem card = p;
  card.link.contention = comm::LinkModel::Contention::per_nic;
  const model::ContextChoices choices = model::choose_context(card.sizes(), card.options(), card.split(), card.links());
  findings.at_most("2. where cards are shared: auto chooses token_ring (1: yes)", 0, choices.best().form == ContextForm::token_ring, 0);
  findings.at_most("2. where cards are shared: ring to token_ring, forward", 1,
                   run(card, ContextForm::ring, whole, false).forward_s / run(card, ContextForm::token_ring, whole, false).forward_s, 1.1);
}

void grouped_heads(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("grouped heads");
  const Problem p{.length = 1024, .kv_heads = 2, .head_dim = 32, .seed = options.seed};
  const Tensors whole = whole_of(p);
  const model::ContextChoices choices = model::choose_context(p.sizes(), p.options(), p.split(), p.links());
  findings.at_most("3. a quarter of the key heads: auto chooses token_ring (1: yes)", 0, choices.best().form == ContextForm::token_ring, 0);
  findings.at_least("3. likewise: token_ring to ring, time forward and backward", 1,
                    run(p, ContextForm::token_ring, whole, false).total_s() / run(p, ContextForm::ring, whole, false).total_s(), 1.1);
}

// auto against every form that works, on six links.
void choice(const ProofOptions& options, Findings& findings, base::Log& log) {
  using comm::LinkModel;
  for (const bool shared : {false, true})
    for (const double mbit : {10.0, 50.0, 1000.0}) {
      Problem p{.length = 512, .kv_heads = 4, .head_dim = 32, .seed = options.seed};
      p.link.bytes_per_s = mbit * 1e6 / 8;
      if (mbit > 100) p.link.latency = std::chrono::milliseconds(2);
      if (shared) p.link.contention = LinkModel::Contention::per_nic;
      const Tensors whole = whole_of(p);
      const model::ContextChoices choices = model::choose_context(p.sizes(), p.options(), p.split(), p.links());
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
  findings.skip("4. computation of twice the transfer time: total at most 1.15x of it",
                "virtual time charges no computation to kernels; `cairn bench context` measures it with processes");
  balance(findings);
  choice(options, findings, log);
}

}  // namespace cairn::study
