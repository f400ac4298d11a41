#include "parallel/stage_run.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/memory_scope.h"
#include "base/trace.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/frozen_prefix.h"
#include "model/model.h"
#include "model/named_parameters.h"

namespace cairn::parallel {
namespace {

// While a part of a pass runs, it is traced and its allocations are attributed to it.
struct Part {
  std::optional<base::Trace::Span> traced;
  base::MemoryScope purpose;
};
Part span(const Pass& pass, std::string_view name, std::string_view category) {
  const size_t dot = name.rfind('.');  // "layers.3.mlp" counts as "mlp"
  return {pass.trace ? std::optional(pass.trace->span(name, category)) : std::nullopt,
          base::MemoryScope(category, name == category                ? ""
                                      : dot == std::string_view::npos ? name
                                                                      : name.substr(dot + 1))};
}

std::vector<mesh::ParamId> weights_of_next(const Pass& pass, const std::vector<std::vector<mesh::ParamId>>& named, size_t first, size_t i,
                                           bool forward, size_t blocks) {
  std::vector<mesh::ParamId> next;
  for (size_t k = 1; k <= blocks; ++k) {
    if (forward ? i + k >= named.size() : k > i) break;
    const size_t at = forward ? i + k : i - k;
    if (forward || backward_needs_weights(pass, first + at)) next.insert(next.end(), named[at].begin(), named[at].end());
  }
  return next;
}

bool recomputes(const Pass& pass, size_t block) {
  return pass.recompute && !pass.options.recompute.empty() && pass.options.recompute[block];
}

}  // namespace

bool backward_needs_weights(const Pass& pass, size_t block) {
  return recomputes(pass, block) || backward_needs_weights(pass.model.blocks()[block]->card());
}

bool backward_needs_weights(const model::Card& card) {
  return std::any_of(card.operations.begin(), card.operations.end(),
                     [](const model::BlockOp& one) { return one.kind != model::BlockOp::Kind::lookup && !one.parameters.empty(); });
}

std::vector<mesh::ParamId> weights_ahead(const Pass& pass, const std::vector<std::vector<mesh::ParamId>>& named, size_t first, size_t i,
                                         bool forward) {
  return weights_of_next(pass, named, first, i, forward, static_cast<size_t>(pass.options.prefetch_blocks));
}

std::vector<mesh::ParamId> weights_kept(const Pass& pass, const std::vector<std::vector<mesh::ParamId>>& named, size_t first, size_t i,
                                        bool forward) {
  return weights_of_next(pass, named, first, i, forward, static_cast<size_t>(std::max(1, pass.options.prefetch_blocks)));
}

StageRun::StageRun(const Pass& pass, BlockRange blocks, bool releases)
    : pass_(pass),
      range_(blocks),
      releases_(releases),
      local_(pass),
      call_{.weights = pass.at,
            .buffers = pass.buffers,
            .axes = pass.axes,
            .random = pass.random,
            .needs = {.input = pass.into != nullptr, .weights = pass.into != nullptr, .as_training = pass.as_training},
            .slice = local_.slice(),
            .token_keys = local_.token_keys(),
            .into = pass.into,
            .options = pass.options,
            .chunks_logits = pass.objective.reads_chunks(),
            .norm_samples = pass.batch.norm_samples,
            .subnet = pass.options.subnet,
            .loss_weight = pass.weight,
            .terms = &terms_,
            .progress = pass.progress},
      keeps_(pass.into != nullptr),
      stage_recomputed_(keeps_ && pass.recompute && pass.options.recompute_stage),
      frozen_(keeps_ && pass.frozen && blocks.first == 0 ? std::min(pass.frozen->blocks(), blocks.last) : 0),
      parts_(pass.model, pass.axes, pass.options) {
  const size_t n = range_.last - range_.first;
  std::map<std::string, size_t> last;
  for (size_t i = 0; i < n; ++i)
    for (const std::string& name : block(i).card().reads) last[name] = i;
  std::set<std::string> wanted(pass.outputs.begin(), pass.outputs.end());  // by later blocks
  dead_.resize(n);
  for (const auto& [name, at] : last)
    if (!wanted.contains(name)) dead_[at].push_back(name);
  groups_ = group_blocks(pass.model, range_.first, range_.last, pass.outputs, call_.slice.length > 0 ? pass.options.slice : 0);
  for (const BlockGroup& group : groups_) sliced_.insert(sliced_.end(), group.last - group.first, group.sliced);
  for (size_t i = 0; i < n; ++i) named_.push_back(model::named_parameters(block(i).card()));
  saved_.resize(keeps_ ? n : 0);
  inputs_.resize(keeps_ ? n : 0);
  done_.resize(keeps_ ? n : 0);
  booked_.reserve(n);
  for (size_t i = 0; keeps_ && i < n; ++i) booked_.emplace_back();
  for (const auto& [name, field] : local_.batch().fields) values_.put(name, field.tensor);
}

const model::Block& StageRun::block(size_t i) const { return *pass_.model.blocks()[range_.first + i]; }

bool StageRun::recomputed(size_t i) const { return recomputes(pass_, range_.first + i); }

void StageRun::book(size_t i) {
  if (!pass_.memory) return;
  int64_t bytes = saved_[i].bytes();
  for (const auto& [name, kept] : inputs_[i]) bytes += kept.device_bytes();
  for (const std::string& name : block(i).card().writes)
    if (values_.has(name) && values_.in_flight(name).chunked_logits) bytes += values_.in_flight(name).chunked_logits->bytes();
  booked_[i] = base::BookedMemory(*pass_.memory, base::MemoryUse::activations, bytes);
}

void StageRun::progress() const {
  if (pass_.progress) pass_.progress->progress();
}

// Keeps what a block reads, for its recomputation. Fields of the batch are there anyway.
void StageRun::save_inputs(size_t i, model::Values& from) {
  for (const std::string& name : block(i).card().reads)
    if (!local_.batch().fields.contains(name)) inputs_[i].emplace(name, from.in_flight(name));
}

// Keeps this rank's part of the inputs of a block, or all of them (PartitionActivations). Comes one block later, when a value that was in
// flight has arrived.
void StageRun::convert_inputs(size_t i) {
  if (inputs_[i].empty()) return;
  for (auto& [name, kept] : inputs_[i])
    kept.convert(parts_, parts_.kept_form(name, pass_.options.partition_activations), tokens(), block(i).card().name);
  book(i);
}

// Starts to copy the inputs of a recomputed block to the host; device memory is released after the next block. Inputs of the last two
// blocks stay: backward needs them at once.
void StageRun::offload_inputs(size_t i) {
  if (i + 2 >= range_.last - range_.first) return;
  convert_inputs(i);
  for (auto& [name, kept] : inputs_[i]) kept.offload();
  offloading_ = i;
}

void StageRun::release_offloaded() {
  if (const auto one = std::exchange(offloading_, std::nullopt))
    for (auto& [name, kept] : inputs_[*one]) kept.release_device();
}

// Starts to fetch the inputs of the block that is recomputed next.
void StageRun::prefetch_inputs(size_t i) {
  size_t next = i;
  while (next > 0 && inputs_[next - 1].empty()) --next;
  if (next > 0)
    for (auto& [name, kept] : inputs_[next - 1]) kept.fetch();
}

void StageRun::offload() {
  at::NoGradGuard no_grad;
  for (KeptInputs& inputs : inputs_)
    for (auto& [name, kept] : inputs) kept.offload();
  for (auto& [name, kept] : stage_inputs_) kept.offload();
}

void StageRun::finish_offload() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].empty()) continue;
    for (auto& [name, kept] : inputs_[i]) kept.release_device();
    book(i);
  }
  for (auto& [name, kept] : stage_inputs_) kept.release_device();
  if (!stage_inputs_.empty()) booked_[0] = {};
}

// The call of a recomputation: a copy of the buffers, because running statistics have been updated already.
model::Call StageRun::recompute_call(model::Buffers& scratch) const {
  scratch = call_.buffers;
  return {.weights = call_.weights,
          .buffers = scratch,
          .axes = call_.axes,
          .random = call_.random,
          .needs = call_.needs,
          .slice = call_.slice,
          .token_keys = call_.token_keys,
          .options = call_.options,
          .chunks_logits = call_.chunks_logits,
          .norm_samples = call_.norm_samples,
          .subnet = call_.subnet,
          .loss_weight = call_.loss_weight,
          .progress = call_.progress};
}

void StageRun::forward_block(size_t i, bool keep, const model::Call& call) {
  const auto traced = span(pass_, block(i).card().name, "forward");
  const size_t n = range_.last - range_.first;
  pass_.at.fetch(named_[i]);
  pass_.at.fetch(weights_ahead(pass_, named_, range_.first, i, /*forward=*/true));
  if (keep && recomputed(i)) {
    save_inputs(i, values_);
    block(i).forward(values_, nullptr, call);
  } else {
    block(i).forward(values_, keep ? &saved_[i] : nullptr, call);
  }
  release_offloaded();
  if (keep && recomputed(i) && pass_.options.offload_inputs) offload_inputs(i);
  if (keep) book(i);
  if (keep && i > 0) convert_inputs(i - 1);
  if (keep && i + 1 == n) convert_inputs(i);
  // Backward needs the last block's weights at once.
  if (releases_ && (!keeps_ || i + 1 < n)) pass_.at.release(named_[i], weights_kept(pass_, named_, range_.first, i, /*forward=*/true));
  progress();
}

// The blocks of a layer in slices along the sequence. Of its activations only the input stays, one for the whole group.
void StageRun::forward_group(const BlockGroup& group, bool keep) {
  const size_t n = range_.last - range_.first, first = group.first - range_.first, last = group.last - range_.first;
  const auto traced = span(pass_, block(first).card().name, "forward");
  for (size_t i = first; i < last; ++i) {
    pass_.at.fetch(named_[i]);
    pass_.at.fetch(weights_ahead(pass_, named_, range_.first, i, /*forward=*/true));
  }
  for (const std::string& name : group.reads)
    if (keep && !local_.batch().fields.contains(name)) inputs_[first].emplace(name, values_.value(name));
  forward_in_slices({pass_.model, group, local_.batch(), call_}, values_);
  release_offloaded();
  if (keep && pass_.options.offload_inputs) offload_inputs(first);
  if (keep && first > 0) convert_inputs(first - 1);
  if (keep) convert_inputs(first);
  for (size_t i = first; i < last; ++i)
    if (releases_ && (!keeps_ || i + 1 < n)) pass_.at.release(named_[i], weights_kept(pass_, named_, range_.first, i, /*forward=*/true));
  progress();
}

void StageRun::backward_group(const BlockGroup& group) {
  const size_t first = group.first - range_.first, last = group.last - range_.first;
  const auto traced = span(pass_, block(first).card().name, "backward");
  for (size_t i = last; i-- > first;) {
    pass_.at.fetch(named_[i]);
    pass_.at.fetch(weights_ahead(pass_, named_, range_.first, i, /*forward=*/false));
  }
  model::Values values;
  for (auto& [name, kept] : inputs_[first]) kept.fetch();  // unless prefetched
  prefetch_inputs(first);
  for (auto& [name, kept] : std::exchange(inputs_[first], {})) values.put(name, kept.take(parts_, block(first).card().name));
  backward_in_slices({pass_.model, group, local_.batch(), call_}, values, gradients_, *pass_.into);
  booked_[first] = {};
  for (size_t i = last; i-- > first;)
    if (releases_) pass_.at.release(named_[i], weights_kept(pass_, named_, range_.first, i, /*forward=*/false));
  progress();
}

// The blocks without backward (Pass::frozen), whose outputs may be known from an earlier epoch. Returns how many blocks are done.
size_t StageRun::forward_frozen() {
  if (frozen_ == 0) return 0;
  const at::Tensor& ids = pass_.batch.ids;
  if (pass_.frozen->restore(ids, ids.device(), values_)) return frozen_;
  for (size_t i = 0; i < frozen_; ++i) {
    forward_block(i, /*keep=*/false, call_);
    for (const std::string& name : dead_[i]) values_.drop(name);
  }
  pass_.frozen->keep(ids, values_);
  return frozen_;
}

void StageRun::forward() {
  at::NoGradGuard no_grad;  // backward is driven block by block; a block that uses autograd enables it inside
  const size_t n = range_.last - range_.first;
  if (stage_recomputed_) {
    std::set<std::string> made;
    for (size_t i = 0; i < n; ++i) {
      for (const std::string& name : block(i).card().reads)
        if (!made.contains(name) && !stage_inputs_.contains(name) && !local_.batch().fields.contains(name))
          stage_inputs_.emplace(name, values_.value(name))
              .first->second.convert(parts_, parts_.kept_form(name, pass_.options.partition_activations), tokens(), name);
      made.insert(block(i).card().writes.begin(), block(i).card().writes.end());
    }
    int64_t bytes = 0;
    for (const auto& [name, kept] : stage_inputs_) bytes += kept.device_bytes();
    if (pass_.memory && n > 0) booked_[0] = base::BookedMemory(*pass_.memory, base::MemoryUse::activations, bytes);
  }
  const size_t frozen = forward_frozen();
  for (const BlockGroup& group : groups_) {
    const size_t first = group.first - range_.first, last = group.last - range_.first;
    if (first < frozen) continue;
    group.sliced ? forward_group(group, keeps_) : forward_block(first, keeps_ && !stage_recomputed_, call_);
    for (size_t i = first; i < last; ++i)
      for (const std::string& name : dead_[i]) values_.drop(name);
  }
}

model::Losses StageRun::evaluate_objective() {
  at::NoGradGuard no_grad;
  const auto traced = span(pass_, "objective", "objective");
  model::Losses losses = pass_.objective.evaluate(values_, local_.batch(), keeps_ ? &gradients_ : nullptr, pass_.weight, pass_.axes);
  values_ = {};
  add_terms(losses);
  return losses;
}

void StageRun::add_terms(model::Losses& losses) const {
  const std::vector<std::string> names = pass_.model.loss_terms();
  if (names.empty()) return;
  const auto own = static_cast<int64_t>(pass_.objective.measures().size()), count = static_cast<int64_t>(names.size());
  const at::Tensor all = at::zeros({own + count}, pass_.batch.ids.options().dtype(at::kDouble));
  if (losses.measures.defined()) all.narrow(0, 0, losses.measures.numel()).copy_(losses.measures);
  for (int64_t i = 0; i < count; ++i)
    if (const at::Tensor sum = terms_.sum(names[static_cast<size_t>(i)]); sum.defined()) all[own + i].add_(sum);
  losses.measures = all;
}

// Runs forward again and keeps everything this time; its outputs are known already.
void StageRun::recompute_stage() {
  if (!std::exchange(stage_recomputed_, false)) return;
  const auto traced = span(pass_, "recompute", "recompute");
  model::Values kept = std::exchange(values_, {});
  for (const auto& [name, field] : local_.batch().fields) values_.put(name, field.tensor);
  for (auto& [name, input] : std::exchange(stage_inputs_, {})) values_.put(name, input.take(parts_, name));
  model::Buffers scratch;
  const model::Call call = recompute_call(scratch);
  for (size_t i = 0; i < range_.last - range_.first; ++i) {
    forward_block(i, true, call);
    for (const std::string& name : dead_[i]) values_.drop(name);
  }
  // A norm of a value that was in flight runs, and saves its statistics, when its result is waited for.
  for (const std::string& name : pass_.outputs)
    if (values_.has(name)) values_.get(name);
  values_ = std::move(kept);
}

void StageRun::recompute_block(size_t i) {
  if (!recomputed(i) || sliced_[i] || done_[i]) return;
  done_[i] = true;
  const auto traced = span(pass_, block(i).card().name, "recompute");
  model::Values values;
  for (const auto& [name, field] : local_.batch().fields) values.put(name, field.tensor);
  for (auto& [name, kept] : inputs_[i]) kept.fetch();  // unless prefetched
  prefetch_inputs(i);
  for (auto& [name, kept] : std::exchange(inputs_[i], {})) values.put(name, kept.take(parts_, block(i).card().name));
  model::Buffers scratch;
  block(i).forward(values, &saved_[i], recompute_call(scratch));
  book(i);
  progress();
}

void StageRun::recompute() {
  at::NoGradGuard no_grad;
  recompute_stage();
  for (size_t i = range_.last - range_.first; i-- > 0;) {
    if (!recomputed(i) || sliced_[i]) continue;  // slices recompute one after the other, with the gradient at hand
    recompute_block(i);
    if (!pass_.options.recompute_all_ahead) return;
  }
}

void StageRun::backward_input() {
  at::NoGradGuard no_grad;
  recompute_stage();
  for (const BlockGroup& group : std::views::reverse(groups_)) {
    if (group.sliced) {  // with the weight gradients: they need the slices' activations
      backward_group(group);
      continue;
    }
    const size_t i = group.first - range_.first;
    const auto traced = span(pass_, block(i).card().name, "backward");
    recompute_block(i);
    block(i).backward_input(gradients_, saved_[i], call_);
    progress();
  }
}

void StageRun::collect_field_gradients(model::Values& into) {
  for (const auto& [name, field] : local_.batch().fields)
    if (gradients_.has(name)) into.add(name, gradients_.take(name));
}

void StageRun::backward_weight() {
  at::NoGradGuard no_grad;
  for (size_t i = range_.last - range_.first; i-- > 0;) {
    if (sliced_[i]) continue;
    const auto traced = span(pass_, block(i).card().name, "weight gradients");
    block(i).backward_weight(std::move(saved_[i]), *pass_.into, call_);
    saved_[i] = {};
    booked_[i] = {};
    progress();
  }
}

void StageRun::backward() {
  at::NoGradGuard no_grad;
  recompute_stage();
  for (const BlockGroup& group : std::views::reverse(groups_)) {
    if (group.sliced) {
      backward_group(group);
      continue;
    }
    const size_t i = group.first - range_.first;
    if (i < frozen_) break;
    const auto traced = span(pass_, block(i).card().name, "backward");
    if (backward_needs_weights(pass_, range_.first + i)) pass_.at.fetch(named_[i]);
    pass_.at.fetch(weights_ahead(pass_, named_, range_.first, i, /*forward=*/false));
    recompute_block(i);
    block(i).backward_input(gradients_, saved_[i], call_);
    block(i).backward_weight(std::move(saved_[i]), *pass_.into, call_);
    saved_[i] = {};
    booked_[i] = {};
    if (releases_) pass_.at.release(named_[i], weights_kept(pass_, named_, range_.first, i, /*forward=*/false));
    progress();
  }
}

}  // namespace cairn::parallel
