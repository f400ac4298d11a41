#include "parallel/activations/stream_parts.h"

#include "comm/group.h"
#include "kernels/aten.h"
#include "mesh/box.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

mesh::Interval tp_part(const comm::Group& tp, int64_t elements) { return mesh::even_part(elements, tp.size(), tp.rank()); }

}  // namespace

StreamParts::StreamParts(const model::Model& model, const mesh::Axes& axes, const model::PassOptions& options) : tp_(axes.find("tp")) {
  if (!tp_) return;
  for (const auto& block : model.blocks()) layouts_.insert(block->card().streams.begin(), block->card().streams.end());
  if (options.slice > 0)
    for (auto& [name, layout] : layouts_) layout = model::TokenLayout::replicated;
}

StreamForm StreamParts::form(const std::string& value, bool in_parts) const {
  const auto found = layouts_.find(value);
  if (found == layouts_.end()) return StreamForm::same;
  const bool sharded = found->second == model::TokenLayout::sharded;
  return sharded == in_parts ? StreamForm::same : sharded ? StreamForm::whole : StreamForm::part;
}

StreamForm StreamParts::kept_form(const std::string& value, model::PartitionActivations rule) const {
  return rule == model::PartitionActivations::automatic ? StreamForm::same : form(value, rule == model::PartitionActivations::on);
}

int64_t StreamParts::part_elements(int64_t elements) const { return tp_part(*tp_, elements).length(); }

at::Tensor StreamParts::to_form(const at::Tensor& value, StreamForm form, int64_t tokens, std::string_view what) const {
  if (form == StreamForm::same) return value;
  if (form == StreamForm::part) {
    const mesh::Interval mine = tp_part(*tp_, value.numel());
    return value.contiguous().view({-1}).narrow(0, mine.begin, mine.length()).clone();
  }
  const int64_t width = value.size(-1);
  const at::Tensor whole = at::empty({1, tokens, width}, value.options());
  std::vector<int64_t> counts = comm::even_counts(tokens, tp_->size());
  for (int64_t& count : counts) count *= width;
  tp_->all_gather(whole, value.contiguous(), {comm::Purpose::activation, what}, std::move(counts)).wait();
  return whole;
}

at::Tensor StreamParts::from_form(const at::Tensor& kept, StreamForm form, const std::vector<int64_t>& shape, std::string_view what) const {
  if (form == StreamForm::same) return kept;
  if (form == StreamForm::whole) {
    const mesh::Interval mine = tp_part(*tp_, kept.size(1));
    return kept.narrow(1, mine.begin, mine.length()).clone();
  }
  const at::Tensor whole = at::empty(shape, kept.options());
  tp_->all_gather(whole, kept, {comm::Purpose::activation, what}, comm::even_counts(whole.numel(), tp_->size())).wait();
  return whole;
}

}  // namespace cairn::parallel
