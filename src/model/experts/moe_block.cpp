// The layer with experts, hand-written. No token is dropped.
//
//   forward   in = norm(x);  route(in): ids, g;  rows of in, sorted by expert --dispatch--> rows of local experts
//             up = rows w_gate_up^T of each expert;  active = silu(gate) * up;  out = active w_down^T  --combine--> results
//             y = x + sum over k of g_k results_k (+ sigmoid(gate in) shared(in))
//   backward  d g_k = <dy, results_k>;  d results_k = g_k dy  --combine_backward--> d out;  the products in reverse
//             --dispatch_backward--> d rows, summed over the k of a token;  d logits from d g and from the router's losses
//
// Saved: x and statistics of the norm, in, the routing, rows, up, results. The activation is recomputed. With tp the stream is sharded by
// tokens, and each rank computes its tokens whole: experts are not split along tp. Their rows travel along ep (experts/exchange.h).
#include "model/experts/moe_block.h"

#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/expert_routing.h"
#include "kernels/grouped_gemm.h"
#include "kernels/low_precision.h"
#include "kernels/swiglu.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"
#include "model/decoder/shape.h"
#include "model/experts/exchange.h"
#include "model/experts/routing_observer.h"

namespace cairn::model {
namespace {

class MoeBlock final : public Block, public RoutedBlock {
 public:
  MoeBlock(const DecoderShape& shape, BlockIo io, MoeParts parts)
      : experts_(shape.experts),
        dropout_(shape.dropout),
        io_(std::move(io)),
        parts_(std::move(parts)),
        router_(experts_, experts_.layers_of(shape.layers), parts_.router) {
    CAIRN_CHECK(parts_.norm && io_.onto.empty() && io_.with.empty(), "{}: experts need the standard wiring", io_.name);
    describe(shape);
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    check_layout(call);
    const at::Tensor x = values.get(io_.reads);
    const Norm::Result normed = parts_.norm->forward(x, call);
    const at::Tensor in = rows(normed.y);
    const Routing routing = router_.route(in, bias(call), call);
    const TokenSequences sequences = TokenSequences::in(values, call);
    router_.add_terms(routing, sequences, call, io_.name);
    observe(routing, call);
    const kernels::ExpertOrder order = kernels::order_by_expert(routing.ids, experts_.count);

    const std::unique_ptr<ExpertRoute> route = exchange(call).begin(request(order.groups), call);
    const ExpertRows sent = route->dispatch(in.index_select(0, order.slots.floor_divide(experts_.top_k)));
    const at::Tensor shared = shared_forward(in, keep, call);  // while rows travel
    sent.ready.wait();
    const kernels::RowGroups groups = route->local_groups();
    const Products products = multiply(sent.rows, groups, call);
    const ExpertRows returned = route->combine(products.out);
    returned.ready.wait();

    at::Tensor y = kernels::gather_sum(returned.rows, order.places, routing.weights);
    if (shared.defined()) y = y.add_(shared);
    apply_dropout(y, dropout_, call, io_.name);
    values.put(io_.writes, y.add_(rows(x)).view(x.sizes()));
    if (!keep) return;
    keep->put("x", x), keep->put("statistics", normed.statistics), keep->put("in", in);
    router_.save(routing, *keep);
    sequences.save(*keep);
    keep->put("weights", routing.weights), keep->put("slots", order.slots), keep->put("places", order.places);
    keep->put("counts", order.groups.counts()), keep->put("local_counts", groups.counts());
    keep->put("rows", sent.rows), keep->put("up", products.up), keep->put("results", returned.rows);
    route->save(*keep);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(io_.writes), x = saved.get("x"), in = saved.get("in");
    const at::Tensor dbranch = dropout_ > 0 ? rows(dy).clone() : rows(dy);
    apply_dropout(dbranch, dropout_, call, io_.name);
    const at::Tensor slots = saved.take("slots"), places = saved.take("places"), weights = saved.take("weights"), up = saved.take("up");
    const kernels::RowGroups groups(saved.get("local_counts"));
    const std::unique_ptr<ExpertRoute> route = exchange(call).resume(request(kernels::RowGroups(saved.take("counts"))), saved, call);

    const at::Tensor of_slots = weights.to(dbranch.scalar_type()).reshape({-1}).index_select(0, slots).unsqueeze(1);
    const at::Tensor by_slot = dbranch.index_select(0, slots.floor_divide(experts_.top_k));
    const at::Tensor dots = at::matmul(saved.take("results").unsqueeze(1), by_slot.unsqueeze(2)).view({-1});
    const ExpertRows dresults = route->combine_backward(by_slot.mul_(of_slots));
    // While these travel: the router and the shared expert.
    const at::Tensor dweights = dots.index_select(0, places.view({-1})).view(places.sizes());
    const at::Tensor dlogits = router_.logits_gradient(dweights, saved, call, io_.name);
    const at::Tensor dshared = shared_backward(dbranch, in, saved, call);
    dresults.ready.wait();

    const at::Tensor active = at::empty({up.size(0), experts_.width}, up.options());  // first its gradient
    kernels::grouped_linear_backward_input(active, dresults.rows, call.weights.get(parts_.down), groups);
    progress_messages(call);
    kernels::swiglu_backward(up, active, up, &active);  // up becomes its gradient, active is recomputed
    const at::Tensor drows = at::empty({up.size(0), in.size(1)}, up.options());
    kernels::grouped_linear_backward_input(drows, up, call.weights.get(parts_.gate_up), groups);
    const ExpertRows back = route->dispatch_backward(drows);
    back.ready.wait();

    at::Tensor din = kernels::gather_sum(back.rows, places);
    if (dshared.defined()) din = din.add_(dshared);
    router_.add_input_gradient(din, dlogits, call);
    norm_backward(gradients, saved, dy, din.view(x.sizes()), call);
    saved.put("dlogits", dlogits), saved.put("active", active), saved.put("dresults", dresults.rows), saved.put("dup", up);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    const kernels::RowGroups groups(saved.take("local_counts"));
    if (parts_.shared) {
      parts_.shared->gate.weight_gradient(into, {.values = saved.get("in")}, {.values = saved.take("shared.dgate")}, call);
      parts_.shared->down.weight_gradient(into, {.values = saved.take("shared.active")}, {.values = saved.take("shared.dout")}, call);
      parts_.shared->up.weight_gradient(into, {.values = saved.get("in")}, {.values = saved.take("shared.dup")}, call);
    }
    into.outer_grouped(parts_.down, saved.take("active"), saved.take("dresults"), groups);
    progress_messages(call);
    into.outer_grouped(parts_.gate_up, saved.take("rows"), saved.take("dup"), groups);
    into.outer(parts_.router, kernels::widened(saved.take("in")), saved.take("dlogits"));
    if (saved.has("dgain")) return into.add(parts_.norm->weight, saved.take("dgain"));
    parts_.norm->weight_gradient(into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(io_.reads), normed = parts_.norm->plain(x, call), in = rows(normed);
    const Routing routing = router_.route(in, bias(call), call);
    router_.add_terms(routing, TokenSequences::in(values, call), call, io_.name);
    const at::Tensor gate_up = call.weights.get(parts_.gate_up), down = call.weights.get(parts_.down);
    at::Tensor sum = at::zeros_like(in);
    for (int64_t e = 0; e < experts_.count; ++e) {  // every expert on all tokens, and 0 for those that did not choose it
      const at::Tensor up = at::matmul(in, gate_up[e].t());
      const at::Tensor active = at::silu(up.narrow(1, 0, experts_.width)) * up.narrow(1, experts_.width, experts_.width);
      const at::Tensor weight = (routing.weights * routing.ids.eq(e)).sum(1, /*keepdim=*/true).to(in.scalar_type());
      sum = sum + weight * at::matmul(active, down[e].t());
    }
    if (parts_.shared) {
      const at::Tensor up = parts_.shared->up.plain(in, call);
      const at::Tensor active =
          at::silu(up.narrow(1, 0, experts_.shared_width)) * up.narrow(1, experts_.shared_width, experts_.shared_width);
      sum = sum + at::sigmoid(parts_.shared->gate.plain(in, call)) * parts_.shared->down.plain(active, call);
    }
    values.put(io_.writes, x + sum.view(x.sizes()));
  }

  Choice choose(const at::Tensor& x, const Call& call) const override {
    const at::Tensor in = norm(x, call);
    const Routing routing = router_.route(in, bias(call), call);
    observe(routing, call);
    return {in, routing.ids, routing.weights};
  }
  at::Tensor norm(const at::Tensor& x, const Call& call) const override { return parts_.norm->forward(x, call).y; }
  at::Tensor run_experts(const at::Tensor& normed, const kernels::RowGroups& groups, const Call& call) const override {
    return multiply(normed, groups, call).out;
  }
  at::Tensor combine(const at::Tensor& x, const at::Tensor& normed, const at::Tensor& results, const at::Tensor& weights,
                     const Call& call) const override {
    return weighted_sum(results, weights, shared_forward(normed, nullptr, call)).add_(x);
  }
  const ExpertShape& experts() const override { return experts_; }
  mesh::ParamId expert_weight() const override { return parts_.gate_up; }

 private:
  struct Products {
    at::Tensor up, out;
  };
  // Rows by local expert.
  Products multiply(const at::Tensor& in, const kernels::RowGroups& groups, const Call& call) const {
    const at::Tensor up = at::empty({in.size(0), 2 * experts_.width}, in.options());
    kernels::grouped_linear(up, in, call.weights.get(parts_.gate_up), groups);
    progress_messages(call);
    const at::Tensor active = at::empty({up.size(0), experts_.width}, up.options());
    kernels::swiglu(active, up);
    const at::Tensor out = at::empty({up.size(0), in.size(1)}, up.options());
    kernels::grouped_linear(out, active, call.weights.get(parts_.down), groups);
    return {up, out};
  }

  // results [n, top_k, embed]; `shared` undefined: there is no shared expert.
  at::Tensor weighted_sum(const at::Tensor& results, const at::Tensor& weights, const at::Tensor& shared) const {
    const at::Tensor y = at::matmul(weights.to(results.scalar_type()).unsqueeze(1), results).squeeze(1);
    return shared.defined() ? y.add_(shared) : y;
  }

  at::Tensor bias(const Call& call) const { return parts_.bias ? call.weights.get(*parts_.bias) : at::Tensor(); }
  const ExpertExchange& exchange(const Call& call) const { return call.options.experts ? *call.options.experts : local_experts(); }
  ExpertRequest request(kernels::RowGroups groups) const {
    return {.block = io_.name, .weight = parts_.gate_up, .groups = std::move(groups)};
  }

  void observe(const Routing& routing, const Call& call) const {
    if (!call.options.routing) return;
    const at::Tensor keys = call.token_keys ? local_tokens(call.token_keys->reshape({-1, 1}), call).reshape({-1}) : at::Tensor();
    const at::Tensor added = bias(call);
    call.options.routing->saw(io_.name, keys, added.defined() ? routing.probabilities + added : routing.probabilities, routing.ids);
  }

  // In slices along the sequence every rank along tp would have all tokens.
  void check_layout(const Call& call) const {
    if (!call.cache && replicated_over_tp(call, TokenLayout::sharded))
      base::fail_input("recompute.mode = \"stream\": {} computes whole sequences with mesh.tp. Use recompute.mode = \"full\".", io_.name);
  }

  void describe(const DecoderShape& shape) {
    const auto embed = static_cast<double>(shape.embed), width = static_cast<double>(experts_.width),
               k = static_cast<double>(experts_.top_k), count = static_cast<double>(experts_.count);
    card_ = {.name = io_.name, .reads = {io_.reads}, .writes = {io_.writes}, .optional_reads = {"sequences", "sequence_tokens"}};
    card_.streams[io_.writes] = TokenLayout::sharded;
    const auto add = [&](BlockOp one) { card_.operations.push_back(std::move(one)); };
    add({.name = "norm",
         .kind = BlockOp::Kind::norm,
         .parameters = parts_.norm->parameters(),
         .axes = {"embed"},
         .flops_per_token = 4 * embed,
         .saved_elements_per_token = 2 * embed});
    add({.name = "router",
         .kind = BlockOp::Kind::other,
         .parameters = {parts_.router},
         .axes = {"router"},
         .flops_per_token = 2 * embed * count,
         .saved_elements_per_token = count + 7 * k,  // probabilities in fp32; ids, weights, slots and places, most of them in 64 bits
         .width = experts_.count});
    if (parts_.bias) card_.operations.back().parameters.push_back(*parts_.bias);
    const auto shared = static_cast<double>(experts_.shared_width), gate = parts_.shared ? 1.0 : 0.0;
    BlockOp all{.name = "experts",
                .kind = BlockOp::Kind::other,
                .parameters = {parts_.gate_up, parts_.down},
                .axes = {"embed"},
                .flops_per_token = k * (6 * embed * width + 5 * width) + 6 * embed * shared + 5 * shared + gate * 2 * embed,
                .saved_elements_per_token = k * (2 * embed + 2 * width) + 2 * shared + gate * (embed + 1),
                .reads = {"norm", "router"},
                .width = shape.embed};
    if (parts_.shared)
      for (const Linear* linear : {&parts_.shared->up, &parts_.shared->down, &parts_.shared->gate})
        all.parameters.push_back(linear->weight);
    add(std::move(all));
    add({.name = "add", .kind = BlockOp::Kind::add, .axes = {"embed"}, .reads = {"experts", io_.reads}});
  }

  // Undefined without a shared expert.
  at::Tensor shared_forward(const at::Tensor& in, Saved* keep, const Call& call) const {
    if (!parts_.shared) return {};
    const at::Tensor up = at::empty({in.size(0), 2 * experts_.shared_width}, in.options());
    parts_.shared->up.forward(up, in, call);
    const at::Tensor active = at::empty({in.size(0), experts_.shared_width}, in.options());
    kernels::swiglu(active, up);
    const at::Tensor out = at::empty_like(in), gate = at::empty({in.size(0), 1}, in.options());
    parts_.shared->down.forward(out, active, call);
    parts_.shared->gate.forward(gate, in, call);
    const at::Tensor open = at::sigmoid(gate);
    if (keep) keep->put("shared.up", up), keep->put("shared.out", out), keep->put("shared.open", open);
    return out * open;
  }

  // The gradient of `in`.
  at::Tensor shared_backward(const at::Tensor& dy, const at::Tensor& in, Saved& saved, const Call& call) const {
    if (!parts_.shared) return {};
    const at::Tensor up = saved.take("shared.up"), out = saved.take("shared.out"), open = saved.take("shared.open");
    const at::Tensor dgate = (dy * out).sum(1, /*keepdim=*/true) * open * (1 - open), dout = dy * open;
    const at::Tensor active = at::empty({in.size(0), experts_.shared_width}, in.options());
    parts_.shared->down.input_gradient(active, dout, call);
    kernels::swiglu_backward(up, active, up, &active);
    const at::Tensor din = at::empty_like(in), of_gate = at::empty_like(in);
    parts_.shared->up.input_gradient(din, up, call);
    parts_.shared->gate.input_gradient(of_gate, dgate, call);
    saved.put("shared.dgate", dgate), saved.put("shared.active", active), saved.put("shared.dout", dout), saved.put("shared.dup", up);
    return din.add_(of_gate);
  }

  void norm_backward(Values& gradients, Saved& saved, const at::Tensor& dy, const at::Tensor& dnormed, const Call& call) const {
    const Norm& norm = *parts_.norm;
    const at::Tensor dx = at::empty_like(dy);
    if (norm.has_fused_backward(saved.get("x"))) {
      saved.put("dgain", norm.backward({dx}, dnormed, saved.take("x"), saved.take("statistics"), call, &dy));
    } else {
      norm.input_gradient(dx, dnormed, saved.get("x"), saved.get("statistics"), call, &dy);
      saved.put("dnormed", dnormed);
    }
    gradients.add(io_.reads, dx);
  }

  ExpertShape experts_;
  double dropout_;
  BlockIo io_;
  MoeParts parts_;
  Router router_;
  Card card_;
};

}  // namespace

const RoutedBlock* routed_block(const Block& block) { return dynamic_cast<const MoeBlock*>(&block); }

std::unique_ptr<Block> make_moe_block(const DecoderShape& shape, BlockIo io, MoeParts parts) {
  return std::make_unique<MoeBlock>(shape, std::move(io), std::move(parts));
}

}  // namespace cairn::model
