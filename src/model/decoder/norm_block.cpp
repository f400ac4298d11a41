// norm(x) as a separate block, over all tokens on every rank. Where x is still in flight, so is the result: the norm runs when x arrives.

#include "kernels/aten.h"
#include "model/decoder/blocks.h"
#include "model/decoder/residual_stream.h"

namespace cairn::model {
namespace {

class NormBlock final : public Block {
 public:
  NormBlock(const DecoderShape& shape, BlockIo io, Norm norm)
      : reads_(std::move(io.reads)), writes_(std::move(io.writes)), norm_(std::move(norm)) {
    const double embed = static_cast<double>(shape.embed);
    card_ = {.name = std::move(io.name),
             .reads = {reads_},
             .writes = {writes_},
             .operations = {{.name = "norm",
                             .kind = BlockOp::Kind::norm,
                             .parameters = norm_.parameters(),
                             .axes = {"embed"},
                             .flops_per_token = 4 * embed,
                             .saved_elements_per_token = 2 * embed}},  // and the result, which its reader keeps
             .streams = {{writes_, TokenLayout::replicated}},
             .sliceable = true};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const Value x = values.in_flight(reads_);
    if (x.ready.ready()) {
      x.ready.wait();
      const Norm::Result normed = norm_.forward(x.tensor, call);
      values.put(writes_, normed.y);
      if (keep) keep->put("x", x.tensor), keep->put("statistics", normed.statistics);
      return;
    }
    // The weights may be released by then.
    const Norm::Held held = norm_.hold(call);
    const Norm::Result into = norm_.results_for(x.tensor);
    values.put(writes_,
               Value{.tensor = into.y, .ready = x.ready.then([norm = norm_, held, x, into] { norm.forward(into, x.tensor, held); })});
    if (keep) keep->put("x", x.tensor), keep->put("statistics", into.statistics);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dnormed = gradients.take(writes_);
    if (!call.axes.find("tp") && norm_.has_fused_backward(saved.get("x"))) {  // both gradients; dx overwrites dnormed
      saved.put("dgain", norm_.backward({dnormed}, dnormed, saved.take("x"), saved.take("statistics"), call));
      return gradients.add(reads_, dnormed);
    }
    const at::Tensor x = saved.get("x"), dx = at::empty_like(x);
    norm_.input_gradient(dx, dnormed, x, saved.get("statistics"), call);
    gradients.add(reads_, dx);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    if (saved.has("dgain")) return into.add(norm_.weight, saved.take("dgain"));
    local_weight_gradient(norm_, into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
  }

  void plain(Values& values, const Call& call) const override { values.put(writes_, norm_.plain(values.get(reads_), call)); }

 private:
  std::string reads_, writes_;
  Norm norm_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_norm_block(const DecoderShape& shape, BlockIo io, Norm norm) {
  return std::make_unique<NormBlock>(shape, std::move(io), std::move(norm));
}

}  // namespace cairn::model
