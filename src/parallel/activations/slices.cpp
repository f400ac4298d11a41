#include "parallel/activations/slices.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/memory_scope.h"
#include "kernels/aten.h"
#include "mesh/chunked_gradients.h"
#include "model/block.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "model/saved.h"
#include "model/sliced_heads.h"

namespace cairn::parallel {
namespace {

using model::Block;
using model::BlockOp;

bool has(const Block& block, BlockOp::Kind kind) {
  return std::ranges::any_of(block.card().operations, [&](const BlockOp& one) { return one.kind == kind; });
}

bool is_attention(const Block& block) { return has(block, BlockOp::Kind::attention); }

bool is_norm_alone(const Block& block) {
  return std::ranges::all_of(block.card().operations, [](const BlockOp& one) { return one.kind == BlockOp::Kind::norm; });
}

bool contains(const std::vector<std::string>& names, const std::string& name) { return std::ranges::find(names, name) != names.end(); }

// One slice of the sequences: positions [begin, begin + count) of each.
struct Slice {
  int64_t begin, count;
};

std::vector<Slice> slices_of(const model::Call& call) {
  std::vector<Slice> all;
  for (int64_t begin = 0; begin < call.slice.length; begin += call.options.slice)
    all.push_back({begin, std::min(call.options.slice, call.slice.length - begin)});
  return all;
}

// [batch, length, ...] to [batch, count, ...], contiguous: blocks view it as a matrix.
at::Tensor cut(const at::Tensor& whole, const Slice& slice) { return whole.narrow(1, slice.begin, slice.count).contiguous(); }

// What the calls for one slice read beside values.
class SliceCall {
 public:
  SliceCall(const SlicedPass& pass, const Slice& slice, model::SlicedHeads& heads, mesh::Gradients* into = nullptr) : call_(pass.call) {
    if (pass.call.token_keys) {
      keys_ = cut(*pass.call.token_keys, slice);
      call_.token_keys = &keys_;
    }
    call_.slice.begin = slice.begin;
    call_.slice.length = slice.count;
    call_.sliced = &heads;
    call_.into = into;
  }
  SliceCall(const SliceCall&) = delete;
  SliceCall& operator=(const SliceCall&) = delete;
  const model::Call& operator*() const { return call_; }

 private:
  model::Call call_;
  at::Tensor keys_;
};

// The values that the blocks of a group read at the beginning of a slice.
model::Values values_of(const SlicedPass& pass, const Slice& slice, model::Values& values) {
  model::Values cut_values;
  for (const std::string& name : pass.group.reads) cut_values.put(name, cut(values.get(name), slice));
  for (const char* name : {"documents", "positions"})
    if (const auto field = pass.batch.fields.find(name); field != pass.batch.fields.end())
      cut_values.put(name, cut(field->second.tensor, slice));
  return cut_values;
}

model::SlicedHeads heads_of(const SlicedPass& pass) {
  model::SlicedHeads heads{.batch = pass.call.slice.batch, .length = pass.call.slice.length};
  if (const auto field = pass.batch.fields.find("documents"); field != pass.batch.fields.end()) heads.documents = field->second.tensor;
  return heads;
}

// The first attention of a group; group.last: there is none.
size_t attention_of(const SlicedPass& pass) {
  size_t i = pass.group.first;
  while (i < pass.group.last && !is_attention(*pass.model.blocks()[i])) ++i;
  return i;
}

// The call for all positions of this rank, with what slices share.
model::Call whole_call(const SlicedPass& pass, model::SlicedHeads& heads) {
  model::Call call = pass.call;
  call.sliced = &heads;
  return call;
}

// Queries, keys and values of all slices. Blocks before the attention run for it; each token is by itself there.
void project(const SlicedPass& pass, const std::vector<Slice>& slices, model::Values& values, model::SlicedHeads& heads) {
  const auto& blocks = pass.model.blocks();
  const size_t attention = attention_of(pass);
  if (attention == pass.group.last) return;
  for (const Slice& slice : slices) {
    const SliceCall call(pass, slice, heads);
    model::Values here = values_of(pass, slice, values);
    for (size_t i = pass.group.first; i < attention; ++i) blocks[i]->forward(here, nullptr, *call);
    blocks[attention]->project(here, *call);
  }
  if (pass.call.slice.context) blocks[attention]->attend(whole_call(pass, heads));
}

// The blocks [first, last) of a group that may be sliced together.
struct Run {
  size_t first = 0, last = 0;
};

// Splits a run of sliceable blocks before each attention but the first, and before the norms ahead of it that no earlier block reads.
std::vector<Run> split_run(const model::Model& model, Run run) {
  std::vector<Run> all;
  bool attends = false;
  size_t begin = run.first;
  for (size_t i = run.first; i < run.last; ++i) {
    if (!is_attention(*model.blocks()[i])) continue;
    if (attends) {
      size_t cut_at = i;
      while (cut_at > begin + 1 && is_norm_alone(*model.blocks()[cut_at - 1])) --cut_at;
      all.push_back({begin, cut_at});
      begin = cut_at;
    }
    attends = true;
  }
  all.push_back({begin, run.last});
  return all;
}

// Which values of other blocks a group reads, and which of its own others read.
void name_values(const model::Model& model, size_t last, const std::vector<std::string>& wanted, BlockGroup& group) {
  std::set<std::string> made, later(wanted.begin(), wanted.end());
  for (size_t i = group.last; i < last; ++i) later.insert(model.blocks()[i]->card().reads.begin(), model.blocks()[i]->card().reads.end());
  for (size_t i = group.first; i < group.last; ++i) {
    for (const std::string& name : model.blocks()[i]->card().reads)
      if (!made.contains(name) && !contains(group.reads, name)) group.reads.push_back(name);
    made.insert(model.blocks()[i]->card().writes.begin(), model.blocks()[i]->card().writes.end());
  }
  for (const std::string& name : made)
    if (later.contains(name)) group.writes.push_back(name);
}

// The gradients of a group's outputs and inputs over whole sequences. A slice's gradient of an output is read once, so blocks may overwrite
// it, and with one value in and one out the gradient of the input takes its memory.
class WholeGradients {
 public:
  // `between`: values inside the group whose gradients wait too.
  WholeGradients(const BlockGroup& group, const std::vector<std::string>& between, model::Values& gradients)
      : reads_(group.reads), kept_(group.reads) {
    kept_.insert(kept_.end(), between.begin(), between.end());
    for (const std::string& name : group.writes)
      if (gradients.has(name)) out_.emplace_back(name, gradients.take(name));
    in_place_ = kept_.size() == 1 && out_.size() == 1;
  }

  model::Values of_outputs(const Slice& slice) const {
    model::Values values;
    for (const auto& [name, whole] : out_) values.put(name, cut(whole, slice));
    return values;
  }
  // Along cp, where backward goes through the slices twice: what the first time gave.
  void end_first_pass() { first_ = in_; }
  model::Values of_first_pass(const Slice& slice) const {
    model::Values values;
    for (const auto& [name, whole] : first_) values.put(name, cut(whole, slice));
    return values;
  }

  void accept(const Slice& slice, model::Values& from) {
    for (const std::string& name : kept_) {
      if (!from.has(name)) continue;
      const at::Tensor part = from.take(name);
      at::Tensor& whole = in_[name];
      if (!whole.defined()) whole = in_place_ && out_.front().second.dtype() == part.dtype() ? out_.front().second : room_for(part);
      whole.narrow(1, slice.begin, slice.count).copy_(part);
    }
  }

  void give(model::Values& gradients) {
    out_.clear(), first_.clear();
    for (const std::string& name : reads_)
      if (const auto found = in_.find(name); found != in_.end()) gradients.add(name, std::move(found->second));
  }

 private:
  at::Tensor room_for(const at::Tensor& part) const {
    const base::MemoryScope scope("stream", "gradients of inputs");
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[1] = out_.front().second.size(1);
    return at::empty(sizes, part.options());
  }

  const std::vector<std::string>& reads_;
  std::vector<std::string> kept_;
  bool in_place_ = false;
  std::vector<std::pair<std::string, at::Tensor>> out_;
  std::map<std::string, at::Tensor> in_, first_;
};

}  // namespace

std::vector<BlockGroup> group_blocks(const model::Model& model, size_t first, size_t last, const std::vector<std::string>& wanted,
                                     int64_t slice) {
  std::vector<BlockGroup> groups;
  for (size_t i = first; i < last;) {
    if (slice == 0 || !model.blocks()[i]->card().sliceable) {
      groups.push_back({.first = i, .last = i + 1});
      ++i;
      continue;
    }
    size_t end = i;
    while (end < last && model.blocks()[end]->card().sliceable) ++end;
    for (const Run& run : split_run(model, {i, end})) {
      groups.push_back({.first = run.first, .last = run.last, .sliced = true});
      name_values(model, last, wanted, groups.back());
    }
    i = end;
  }
  return groups;
}

void forward_in_slices(const SlicedPass& pass, model::Values& values) {
  const std::vector<Slice> slices = slices_of(pass.call);
  model::SlicedHeads heads = heads_of(pass);
  project(pass, slices, values, heads);
  std::map<std::string, at::Tensor> made;
  for (const Slice& slice : slices) {
    const SliceCall call(pass, slice, heads);
    model::Values here = values_of(pass, slice, values);
    for (size_t i = pass.group.first; i < pass.group.last; ++i) pass.model.blocks()[i]->forward(here, nullptr, *call);
    for (const std::string& name : pass.group.writes) {
      const at::Tensor part = here.take(name);
      at::Tensor& whole = made[name];
      if (!whole.defined()) {
        std::vector<int64_t> sizes = part.sizes().vec();
        sizes[1] = pass.call.slice.length;
        whole = at::empty(sizes, part.options());
      }
      whole.narrow(1, slice.begin, slice.count).copy_(part);
    }
  }
  for (auto& [name, whole] : made) values.put(name, std::move(whole));
}

namespace {

// Backward of one slice through the blocks [first, last), of which forward keeps everything first.
void backward_slice(const SlicedPass& pass, size_t first, model::Values& here, model::Values& back, mesh::Gradients& into,
                    const model::Call& call) {
  const auto& blocks = pass.model.blocks();
  std::vector<model::Saved> saved(pass.group.last - first);
  for (size_t i = 0; i < saved.size(); ++i) blocks[first + i]->forward(here, &saved[i], call);
  // A norm of a value in flight runs, and saves its statistics, when its result is waited for. Its reader may be in a later group.
  for (size_t i = first; i < pass.group.last; ++i)
    if (is_norm_alone(*blocks[i])) here.get(blocks[i]->card().writes.front());
  here = {};
  for (size_t i = saved.size(); i-- > 0;) {
    blocks[first + i]->backward_input(back, saved[i], call);
    blocks[first + i]->backward_weight(std::move(saved[i]), into, call);
  }
}

// What is left along cp, after the attention of all positions: its projection, and the blocks before it.
void unproject_slice(const SlicedPass& pass, size_t attention, model::Values& here, model::Values& back, mesh::Gradients& into,
                     const model::Call& call) {
  const auto& blocks = pass.model.blocks();
  std::vector<model::Saved> saved(attention - pass.group.first);
  for (size_t i = 0; i < saved.size(); ++i) blocks[pass.group.first + i]->forward(here, &saved[i], call);
  blocks[attention]->unproject(here, back, into, call);
  for (size_t i = saved.size(); i-- > 0;) {
    blocks[pass.group.first + i]->backward_input(back, saved[i], call);
    blocks[pass.group.first + i]->backward_weight(std::move(saved[i]), into, call);
  }
}

}  // namespace

void backward_in_slices(const SlicedPass& pass, model::Values& values, model::Values& gradients, mesh::Gradients& into) {
  const auto& blocks = pass.model.blocks();
  const std::vector<Slice> slices = slices_of(pass.call);
  model::SlicedHeads heads = heads_of(pass);
  project(pass, slices, values, heads);
  std::vector<mesh::ParamId> named;
  for (size_t i = pass.group.first; i < pass.group.last; ++i)
    for (const mesh::ParamId& id : model::named_parameters(blocks[i]->card())) named.push_back(id);
  mesh::ChunkedGradients sums(into, named, static_cast<int64_t>(slices.size()));
  const size_t attention = attention_of(pass);
  const bool in_two = pass.call.slice.context && attention < pass.group.last;
  std::vector<std::string> between;  // what blocks before the attention give to blocks after it
  for (size_t i = pass.group.first; in_two && i < attention; ++i)
    between.insert(between.end(), blocks[i]->card().writes.begin(), blocks[i]->card().writes.end());
  WholeGradients whole(pass.group, between, gradients);
  for (const Slice& slice : std::ranges::reverse_view(slices)) {
    const SliceCall call(pass, slice, heads);
    model::Values here = values_of(pass, slice, values), back = whole.of_outputs(slice);
    for (size_t i = pass.group.first; in_two && i < attention; ++i) blocks[i]->forward(here, nullptr, *call);
    backward_slice(pass, in_two ? attention : pass.group.first, here, back, sums, *call);
    whole.accept(slice, back);
  }
  if (in_two) {
    whole.end_first_pass();
    blocks[attention]->attend_backward(whole_call(pass, heads));
    for (const Slice& slice : slices) {
      const SliceCall call(pass, slice, heads);
      model::Values here = values_of(pass, slice, values), back = whole.of_first_pass(slice);
      unproject_slice(pass, attention, here, back, sums, *call);
      whole.accept(slice, back);
    }
  }
  sums.flush();
  whole.give(gradients);
}

}  // namespace cairn::parallel
