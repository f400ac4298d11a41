#include "model/branch.h"

#include <utility>

#include "comm/group.h"
#include "kernels/aten.h"
#include "model/rows.h"

namespace cairn::model {

Branch::Branch(Border border, std::optional<Norm> norm, int64_t embed, double dropout)
    : border_(std::move(border)), norm_(std::move(norm)), embed_(embed), dropout_(dropout) {}

void advance(const Call& call) {
  if (comm::Group* tp = call.axes.find("tp")) tp->progress();
}

void Branch::describe(Card& card) const {
  card.name = border_.name;
  card.reads = {border_.reads};
  for (const std::string& other : {border_.onto, border_.with})
    if (!other.empty()) card.reads.push_back(other);
  card.writes = {border_.writes};
  if (const std::string onto = norm_ ? border_.reads : border_.onto; !onto.empty()) {
    Operation add{.name = "add", .kind = Operation::Kind::add, .axes = {"embed"}, .reads = {card.operations.back().name}};
    if (!border_.with.empty()) add.reads.push_back(border_.with);
    add.reads.push_back(onto);
    card.operations.push_back(std::move(add));
  }
  if (!norm_) return;
  const auto embed = static_cast<double>(embed_);
  card.operations.insert(card.operations.begin(), {.name = "norm",
                                                   .kind = Operation::Kind::norm,
                                                   .parameters = norm_->parameters(),
                                                   .axes = {"embed"},
                                                   .flops_per_token = 4 * embed,
                                                   .saved_elements_per_token = 2 * embed,
                                                   .result_per_token = embed,
                                                   .gpu_makes_again = norm_->kind == Norm::Kind::rms});
}

Branch::In Branch::enter(Values& values, Saved* keep, const Call& call, const OnRows& use, Factor* normed_factor) const {
  const at::Tensor x = values.get(border_.reads);
  if (!norm_) {
    In in{.rows = rows(x), .extent = {x.size(0), x.size(1)}};
    use(in.rows, 0, in.rows.size(0));
    if (keep) keep->put("in", in.rows);
    return in;
  }
  const bool alone = !call.axes.find("tp");  // what is gathered from others may be larger
  const Norm::Result normed = norm_->forward(x, call, normed_factor && keep && alone ? &normed_factor->amax : nullptr);
  In in{.x = x, .extent = extent(x, call)};
  in.rows = gather_tokens(rows(normed.y), in.extent, call, border_.name, use);
  if (keep) {
    keep->put("x", x);
    if (!alone || !norm_->is_one_pass(x)) keep->put("in", in.rows);  // else it is made once more
    keep->put("statistics", normed.statistics);
  }
  return in;
}

// What is left to do once the sums are there.
void Branch::finish(const at::Tensor& sums, const Value& onto, const Call& call) const {
  drop(sums, dropout_, call, border_.name, Tokens::whole);
  onto.ready.wait();
  sums.add_(rows(onto.tensor));
}

void Branch::leave(Values& values, const In& in, const at::Tensor& from, const Linear& out, const Call& call, Factor* made) const {
  const at::Tensor terms = at::empty({from.size(0), embed_}, from.options());
  const std::string& onto_name = norm_ ? border_.reads : border_.onto;
  if (dropout_ == 0 && !call.axes.find("tp") && !onto_name.empty()) {  // the product starts from the stream, or from another branch's terms
    const at::Tensor x = values.get(onto_name), first = rows(border_.with.empty() ? x : values.get(border_.with));
    out.product(terms, from, call, &first, made);
    out.add_bias(terms, call);
    if (!border_.with.empty()) terms.add_(rows(x));
    return values.put(border_.writes, terms.view(x.sizes()));
  }
  const OnRows make = [&](const at::Tensor& sums, int64_t begin, int64_t count) {
    out.product(sums.narrow(0, begin, count), from.narrow(0, begin, count), call, nullptr, count == from.size(0) ? made : nullptr);
  };
  if (norm_) {
    const at::Tensor y = reduce_tokens(terms, call, border_.name, make).view(in.x.sizes());
    out.add_bias(rows(y), call);
    drop(rows(y), dropout_, call, border_.name);
    y.add_(in.x);
    values.put(border_.writes, y);
    return;
  }
  make(terms, 0, terms.size(0));
  comm::Group* tp = call.axes.find("tp");
  if (!tp || tp->rank() == 0) out.add_bias(terms, call);  // once
  const at::Tensor y = terms.view({in.extent.batch, in.extent.length, terms.size(1)});
  if (border_.onto.empty()) return values.put(border_.writes, y);
  if (!border_.with.empty()) terms.add_(rows(values.get(border_.with)));
  Value written{.tensor = y, .ready = sum_over_ranks(terms, call, border_.name)};
  const Value onto = values.in_flight(border_.onto);
  written.ready = written.ready.then([this, terms, onto, call] { finish(terms, onto, call); });
  if (!tp || !call.late_sums) written.ready.wait();
  values.put(border_.writes, std::move(written));
}

Branch::Back Branch::enter_back(Values& gradients, Saved& saved, const Call& call, const OnRows& use, Factor* dout) const {
  if (dout && dropout_ == 0 && !call.axes.find("tp")) dout->amax = gradients.value(border_.writes).amax;
  Back back{.dy = gradients.take(border_.writes)};
  const at::Tensor dbranch = dropout_ > 0 ? back.dy.clone() : back.dy;
  drop(rows(dbranch), dropout_, call, border_.name, norm_ ? Tokens::shared : Tokens::whole);
  saved.put("dy", dbranch);
  if (norm_) {
    back.dout = gather_tokens(rows(dbranch), extent(back.dy, call), call, border_.name, use);
    return back;
  }
  if (!border_.onto.empty()) gradients.add(border_.onto, back.dy);
  if (!border_.with.empty()) gradients.add(border_.with, dbranch);
  back.dout = rows(dbranch);
  use(back.dout, 0, back.dout.size(0));
  return back;
}

void Branch::leave_back(Values& gradients, Saved& saved, const Back& back, const at::Tensor& din, const OnRows& make,
                        const Call& call) const {
  if (norm_) {
    const at::Tensor dnormed = reduce_tokens(din, call, border_.name, make).view(back.dy.sizes());
    const bool one_pass = norm_->is_one_pass(saved.get("x"));
    const at::Tensor dx = one_pass ? dnormed : at::empty_like(back.dy);  // its place, where nothing else needs it
    Value handed_on{.tensor = dx};
    at::Tensor* amax = call.fp8 ? &handed_on.amax : nullptr;
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
    gradients.add(border_.reads, std::move(handed_on));
    return;
  }
  make(din, 0, din.size(0));
  Value sums{.tensor = din.view(back.dy.sizes()), .ready = sum_over_ranks(din, call, border_.name)};
  if (!call.late_sums) sums.ready.wait();
  gradients.add(border_.reads, std::move(sums));
}

void Branch::weight_gradients(Saved& saved, mesh::Gradients& into, const Linear& out, const Call& call) const {
  const at::Tensor dy = rows(saved.take("dy"));
  out.bias_gradient(into, norm_ ? dy : own_tokens(dy, call));
  if (saved.has("dgain")) return into.add(norm_->weight, saved.take("dgain"));
  if (norm_) norm_->weight_gradient(into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
}

at::Tensor Branch::plain_in(Values& values, const Call& call) const {
  const at::Tensor x = values.get(border_.reads);
  return norm_ ? norm_->plain(x, call) : x;
}

void Branch::plain_out(Values& values, const at::Tensor& result) const {
  at::Tensor y = result;
  if (!border_.with.empty()) y = y + values.get(border_.with);
  if (norm_) y = values.get(border_.reads) + y;
  if (!border_.onto.empty()) y = values.get(border_.onto) + y;
  values.put(border_.writes, y);
}

}  // namespace cairn::model
