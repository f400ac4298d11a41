#include "model/decoder/residual_branch.h"

#include <utility>

#include "comm/group.h"
#include "kernels/aten.h"
#include "model/decoder/rows.h"

namespace cairn::model {

ResidualBranch::ResidualBranch(BlockIo io, std::optional<Norm> norm, int64_t embed, double dropout)
    : io_(std::move(io)), norm_(std::move(norm)), embed_(embed), dropout_(dropout) {}

void progress_messages(const Call& call) {
  if (comm::Group* group = call.progress ? call.progress : call.axes.find("tp")) group->progress();
}

void ResidualBranch::describe(Card& card) const {
  card.name = io_.name;
  card.reads = {io_.reads};
  for (const std::string& other : {io_.onto, io_.with})
    if (!other.empty()) card.reads.push_back(other);
  card.writes = {io_.writes};
  if (norm_) card.streams[io_.writes] = TokenLayout::sharded;
  if (!norm_ && !io_.onto.empty()) card.streams[io_.writes] = TokenLayout::replicated;
  if (const std::string onto = norm_ ? io_.reads : io_.onto; !onto.empty()) {
    BlockOp add{.name = "add", .kind = BlockOp::Kind::add, .axes = {"embed"}, .reads = {card.operations.back().name}};
    if (!io_.with.empty()) add.reads.push_back(io_.with);
    add.reads.push_back(onto);
    card.operations.push_back(std::move(add));
  }
  if (!norm_) return;
  const auto embed = static_cast<double>(embed_);
  card.operations.insert(card.operations.begin(), {.name = "norm",
                                                   .kind = BlockOp::Kind::norm,
                                                   .parameters = norm_->parameters(),
                                                   .axes = {"embed"},
                                                   .flops_per_token = 4 * embed,
                                                   .saved_elements_per_token = 2 * embed,
                                                   .result_elements_per_token = embed,
                                                   .recomputed_on_gpu = norm_->kind == Norm::Kind::rms});
}

ResidualBranch::In ResidualBranch::begin_forward(Values& values, Saved* keep, const Call& call, const OnRows& use,
                                                 Operand* normed_operand) const {
  const at::Tensor x = values.get(io_.reads);
  if (!norm_) {
    In in{.rows = rows(x), .batch_shape = {x.size(0), x.size(1)}};
    use(in.rows, 0, in.rows.size(0));
    if (keep) keep->put("in", in.rows);
    return in;
  }
  const bool alone = !call.axes.find("tp");  // with tp, gathered tokens may exceed the amax
  const Norm::Result normed = norm_->forward(x, call, normed_operand && keep && alone ? &normed_operand->amax : nullptr);
  In in{.x = x, .batch_shape = batch_shape(x, call)};
  in.rows = gather_tokens(rows(normed.y), in.batch_shape, call, io_.name, use);
  if (keep) {
    keep->put("x", x);
    if (!alone || !norm_->has_fused_backward(x)) keep->put("in", in.rows);  // else backward recomputes it
    keep->put("statistics", normed.statistics);
  }
  return in;
}

ResidualBranch::In ResidualBranch::resume_forward(Values& values, Saved* keep, const Call& call) const {
  if (keep) return begin_forward(values, keep, call, [](const at::Tensor&, int64_t, int64_t) {});
  const at::Tensor x = values.get(io_.reads);
  return {.x = norm_ ? x : at::Tensor(), .batch_shape = batch_shape(x, call)};
}

// Runs when the all-reduce is done.
void ResidualBranch::finish(const at::Tensor& sums, const Value& onto, const Call& call) const {
  apply_dropout(sums, dropout_, call, io_.name, TokenLayout::replicated);
  onto.ready.wait();
  sums.add_(rows(onto.tensor));
}

void ResidualBranch::end_forward(Values& values, const In& in, const at::Tensor& from, const Linear& out, const Call& call,
                                 Operand* made) const {
  const at::Tensor terms = at::empty({from.size(0), embed_}, from.options());
  const std::string& onto_name = norm_ ? io_.reads : io_.onto;
  if (dropout_ == 0 && !call.axes.find("tp") &&
      !onto_name.empty()) {  // the GEMM accumulates onto the stream, or onto another branch's terms
    const at::Tensor x = values.get(onto_name), first = rows(io_.with.empty() ? x : values.get(io_.with));
    out.product(terms, from, call, &first, made);
    out.add_bias(terms, call);
    if (!io_.with.empty()) terms.add_(rows(x));
    return values.put(io_.writes, terms.view(x.sizes()));
  }
  const OnRows make = [&](const at::Tensor& sums, int64_t begin, int64_t count) {
    out.product(sums.narrow(0, begin, count), from.narrow(0, begin, count), call, nullptr, count == from.size(0) ? made : nullptr, nullptr,
                begin);
  };
  if (norm_) {
    const at::Tensor y = reduce_scatter_tokens(terms, call, io_.name, make).view(in.x.sizes());
    out.add_bias(rows(y), call);
    apply_dropout(rows(y), dropout_, call, io_.name);
    y.add_(in.x);
    values.put(io_.writes, y);
    return;
  }
  make(terms, 0, terms.size(0));
  comm::Group* tp = call.axes.find("tp");
  if (!tp || tp->rank() == 0) out.add_bias(terms, call);  // once
  const at::Tensor y = terms.view({in.batch_shape.batch, in.batch_shape.length, terms.size(1)});
  if (io_.onto.empty()) return values.put(io_.writes, y);
  if (!io_.with.empty()) terms.add_(rows(values.get(io_.with)));
  Value written{.tensor = y, .ready = all_reduce_tp(terms, call, io_.name)};
  const Value onto = values.in_flight(io_.onto);
  written.ready = written.ready.then([this, terms, onto, call] { finish(terms, onto, call); });
  if (!tp || !call.options.overlap_residual_sums) written.ready.wait();
  values.put(io_.writes, std::move(written));
}

ResidualBranch::Back ResidualBranch::begin_backward(Values& gradients, Saved& saved, const Call& call, const OnRows& use,
                                                    Operand* dout) const {
  if (dout && dropout_ == 0 && !call.axes.find("tp")) dout->amax = gradients.value(io_.writes).amax;
  Back back{.dy = gradients.take(io_.writes)};
  const at::Tensor dbranch = dropout_ > 0 ? back.dy.clone() : back.dy;
  apply_dropout(rows(dbranch), dropout_, call, io_.name, norm_ ? TokenLayout::sharded : TokenLayout::replicated);
  saved.put("dy", dbranch);
  if (norm_) {
    back.dout = gather_tokens(rows(dbranch), batch_shape(back.dy, call), call, io_.name, use);
    return back;
  }
  if (!io_.onto.empty()) gradients.add(io_.onto, back.dy);
  if (!io_.with.empty()) gradients.add(io_.with, dbranch);
  back.dout = rows(dbranch);
  use(back.dout, 0, back.dout.size(0));
  return back;
}

void ResidualBranch::end_backward(Values& gradients, Saved& saved, const Back& back, const at::Tensor& din, const OnRows& make,
                                  const Call& call) const {
  if (norm_) {
    const at::Tensor dnormed = reduce_scatter_tokens(din, call, io_.name, make).view(back.dy.sizes());
    const bool one_pass = norm_->has_fused_backward(saved.get("x")) && !replicated_over_tp(call, TokenLayout::sharded);
    const at::Tensor dx = one_pass ? dnormed : at::empty_like(back.dy);  // in place, where nothing else reads it
    Value handed_on{.tensor = dx};
    at::Tensor* amax = call.fp8() ? &handed_on.amax : nullptr;
    if (one_pass) {
      const at::Tensor x = saved.take("x");
      const bool again = !saved.has("in") && !saved.has("in.codes");
      const at::Tensor y = again ? at::empty_like(x) : at::Tensor();
      saved.put("dgain", norm_->backward({dx, again ? &y : nullptr, amax}, dnormed, x, saved.take("statistics"), call, &back.dy));
      if (again) saved.put("in", rows(y));
    } else {
      norm_->input_gradient(dx, dnormed, saved.get("x"), saved.get("statistics"), call, &back.dy, amax);
      saved.put("dnormed", dnormed);
    }
    gradients.add(io_.reads, std::move(handed_on));
    return;
  }
  make(din, 0, din.size(0));
  Value sums{.tensor = din.view(back.dy.sizes()), .ready = all_reduce_tp(din, call, io_.name)};
  if (!call.options.overlap_residual_sums) sums.ready.wait();
  gradients.add(io_.reads, std::move(sums));
}

void ResidualBranch::weight_gradients(Saved& saved, mesh::Gradients& into, const Linear& out, const Call& call) const {
  bias_gradient(saved, into, out, call);
  norm_gradients(saved, into, call);
}

void ResidualBranch::bias_gradient(Saved& saved, mesh::Gradients& into, const Linear& out, const Call& call) const {
  const at::Tensor dy = rows(saved.take("dy"));
  out.bias_gradient(into, !norm_ || replicated_over_tp(call, TokenLayout::sharded) ? local_tokens(dy, call) : dy, call);
}

void ResidualBranch::norm_gradients(Saved& saved, mesh::Gradients& into, const Call& call) const {
  if (saved.has("dgain")) return into.add(norm_->weight, saved.take("dgain"));
  if (!norm_) return;
  if (replicated_over_tp(call, TokenLayout::sharded))
    local_weight_gradient(*norm_, into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
  else
    norm_->weight_gradient(into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
}

at::Tensor ResidualBranch::plain_in(Values& values, const Call& call) const {
  const at::Tensor x = values.get(io_.reads);
  return norm_ ? norm_->plain(x, call) : x;
}

void ResidualBranch::plain_out(Values& values, const at::Tensor& result) const {
  at::Tensor y = result;
  if (!io_.with.empty()) y = y + values.get(io_.with);
  if (norm_) y = values.get(io_.reads) + y;
  if (!io_.onto.empty()) y = values.get(io_.onto) + y;
  values.put(io_.writes, y);
}

}  // namespace cairn::model
