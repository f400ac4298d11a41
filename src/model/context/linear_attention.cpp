// Linear attention over a sequence that is cut over ranks. With S_p, G_p the state and decay of rank p's own tokens from zero:
//
//   forward   initial(p) = sum over i < p of (product of G_j, i < j < p) S_i       a scan from the first rank on
//   backward  the same from the last rank on, with the gradients D_p of the states before each rank's first token
//
// zeco starts that scan as soon as S_p is known and computes attention within chunks meanwhile, which needs no state.
#include "model/context/linear_attention.h"

#include <functional>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

constexpr comm::Label kStates{comm::Purpose::activation, "states of linear attention"};
constexpr comm::Label kStateGradients{comm::Purpose::activation, "gradients of states of linear attention"};

// A value that travels along the ranks: what this rank adds to it and the factors by which this rank multiplies what passes.
struct Passing {
  const LinearContext& context;
  bool backward;  // from the last rank to the first
  comm::Label label;

  comm::Group& group() const { return *context.group; }
  int before() const { return group().rank() + (backward ? 1 : -1); }
  int after() const { return group().rank() + (backward ? -1 : 1); }
  bool has(int rank) const { return rank >= 0 && rank < group().size(); }
  bool rounds() const { return context.dtype == StateDtype::bf16; }

  at::Tensor as_sent(const at::Tensor& state) const { return rounds() ? state.to(at::kBFloat16) : state; }
  at::Tensor as_kept(const at::Tensor& received, const at::Tensor& like) const { return received.to(like.scalar_type()); }

  // zeco: overlaps with `compute`. Returns what comes in; `own` becomes what goes out.
  at::Tensor scan(const at::Tensor& own, const at::Tensor& factors, const std::function<void()>& compute) const {
    const at::Tensor incoming = at::empty(own.sizes(), rounds() ? own.options().dtype(at::kBFloat16) : own.options());
    const comm::Work work = group().all_scan(incoming, own, factors, {.backward = backward, .blocks = context.blocks}, label);
    compute();
    work.wait();
    return as_kept(incoming, own);
  }

  // lasp2: every rank gets all states and decays, and adds up those before it.
  at::Tensor gather(const at::Tensor& own, const at::Tensor& factors, const std::function<void()>& compute) const {
    const int n = group().size();
    const at::Tensor mine = as_sent(at::cat({own, factors.unsqueeze(3)}, 3));
    std::vector<int64_t> sizes = mine.sizes().vec();
    sizes.insert(sizes.begin(), n);
    const at::Tensor all = at::empty(sizes, mine.options());
    const comm::Work work = group().all_gather(all, mine, label);
    compute();
    work.wait();
    at::Tensor incoming = at::zeros_like(own);
    const int64_t values = own.size(3);
    for (int rank = backward ? n - 1 : 0; rank != group().rank(); rank += backward ? -1 : 1) {
      const at::Tensor theirs = as_kept(all[rank], own);
      incoming = incoming * theirs.narrow(3, values, 1) + theirs.narrow(3, 0, values);
    }
    own.add_(incoming * factors.unsqueeze(3));
    return incoming;
  }

  // lasp1: waits for the ranks before, then lets `compute` use what came in, then sends.
  void chain(const at::Tensor& own, const at::Tensor& factors, const std::function<void(const at::Tensor& incoming)>& compute) const {
    at::Tensor incoming;
    if (has(before())) {
      const at::Tensor received = as_sent(at::empty_like(own));
      group().recv(received, before(), label).wait();
      incoming = as_kept(received, own);
      own.add_(incoming * factors.unsqueeze(3));
    }
    compute(incoming);
    if (has(after())) group().send(as_sent(own), after(), label).wait();
  }

  // The first rank of the scan gets zeros, which need not be added.
  at::Tensor known(const at::Tensor& incoming) const { return has(before()) ? incoming : at::Tensor(); }
};

bool alone(const LinearContext& context) { return context.group == nullptr || context.group->size() == 1; }

std::function<void()> driving(const LinearContext& context) {
  if (context.between || context.group == nullptr) return context.between;
  return [group = context.group] { group->progress(); };
}

}  // namespace

at::Tensor document_starts(const at::Tensor& documents, const at::Tensor& before) {
  CAIRN_CHECK(documents.dim() == 2 && documents.scalar_type() == at::kLong, "documents {} of {}", c10::str(documents.sizes()),
              c10::toString(documents.scalar_type()));
  const int64_t local = documents.size(1);
  const at::Tensor starts = at::zeros(documents.sizes(), documents.options().dtype(at::kBool));
  if (local > 1) starts.narrow(1, 1, local - 1).copy_(documents.narrow(1, 1, local - 1) != documents.narrow(1, 0, local - 1));
  if (local > 0 && before.defined()) starts.select(1, 0).copy_(documents.select(1, 0) != before);
  return starts;
}

LinearBorders linear_attention(const at::Tensor& out, const kernels::LinearAttention& on, const LinearContext& context) {
  const kernels::LinearStates states = kernels::linear_states(on);
  const auto finish = [&](const at::Tensor& initial) {
    kernels::attend_earlier_chunks(out, on, states, initial);
    return LinearBorders{initial, states.end};
  };
  if (alone(context)) {
    kernels::attend_within_chunks(out, on, context.between);
    return finish({});
  }
  const Passing passing{context, /*backward=*/false, kStates};
  const auto within = [&] { kernels::attend_within_chunks(out, on, driving(context)); };
  switch (context.form) {
    case LinearForm::zeco:
      return finish(passing.known(passing.scan(states.end, states.decay, within)));
    case LinearForm::lasp2:
      return finish(passing.known(passing.gather(states.end, states.decay, within)));
    case LinearForm::lasp1:
      break;
  }
  LinearBorders borders;
  passing.chain(states.end, states.decay, [&](const at::Tensor& initial) {
    kernels::attend_within_chunks(out, on, context.between);
    borders = finish(initial);
  });
  return borders;
}

void linear_attention_backward(const kernels::LinearGradients& into, const at::Tensor& dg, const kernels::LinearAttention& on,
                               const at::Tensor& dout, const at::Tensor& initial, const LinearContext& context) {
  const kernels::LinearStateGradients gradients = kernels::linear_state_gradients(on, dout);
  kernels::LinearStates states;
  const auto finish = [&](const at::Tensor& end) {
    kernels::attend_earlier_chunks_backward(into, on, dout, states, initial, gradients, end);
    if (dg.defined()) kernels::linear_decay_gradient(dg, on, into, kernels::linear_gate_base(states, initial, end));
  };
  const auto within = [&](const std::function<void()>& between) {
    states = kernels::linear_states(on);
    kernels::attend_within_chunks_backward(into, on, dout, between);
  };
  if (alone(context)) {
    within(context.between);
    return finish({});
  }
  const Passing passing{context, /*backward=*/true, kStateGradients};
  switch (context.form) {
    case LinearForm::zeco:
      return finish(passing.known(passing.scan(gradients.begin, gradients.decay, [&] { within(driving(context)); })));
    case LinearForm::lasp2:
      return finish(passing.known(passing.gather(gradients.begin, gradients.decay, [&] { within(driving(context)); })));
    case LinearForm::lasp1:
      return passing.chain(gradients.begin, gradients.decay, [&](const at::Tensor& end) {
        within(context.between);
        finish(end);
      });
  }
}

}  // namespace cairn::model
