#include "parallel/generate/expert_stage.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <variant>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/experts/moe_block.h"
#include "model/model.h"
#include "parallel/generate/travelling_rows.h"

namespace cairn::parallel {
namespace {

bool has_attention(const model::Block& block) {
  return std::ranges::any_of(block.card().operations,
                             [](const model::BlockOp& operation) { return operation.kind == model::BlockOp::Kind::attention; });
}

at::Tensor device_index(const std::vector<int64_t>& numbers, at::Device device) {
  const at::Tensor index = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), index.mutable_data_ptr<int64_t>());
  return index.to(device);
}

// A tensor of the cache as a matrix with a row for each sequence and position.
at::Tensor position_rows(const at::Tensor& cached) { return cached.view({cached.size(0) * cached.size(1), -1}); }

}  // namespace

ExpertStage::ExpertStage(const Parts& parts)
    : parts_(parts),
      ranks_(parts.tokens.size()),
      me_(parts.tokens.rank()),
      blocks_({.model = parts.model,
               .weights = parts.weights,
               .buffers = parts.buffers,
               .axes = parts.axes,
               .first = parts.first,
               .last = parts.last,
               .rows = std::max<int64_t>(
                   1, parts.flow == ExpertFlow::exflow ? parts.rows : (parts.rows + parts.tokens.size() - 1) / parts.tokens.size()),
               .length_max = parts.length_max}) {
  // A first call of each attention makes its part of the cache: on every rank, though only some compute prompts.
  blocks_.grow(1);
  const int64_t embed = parts.model.parameters().front().shape.at(1);
  const at::Tensor x = at::zeros({1, embed}, parts.weights.get({0}).options());
  for (size_t block = parts.first; block < parts.last; ++block)
    if (has_attention(*parts.model.blocks()[block])) run_block(block, x.unsqueeze(0), 0, 0, 1);
  if (!blocks_.cache().places.empty() || !blocks_.cache().states.empty())
    base::fail_input(
        "--mesh ep={}: generation along ep keeps keys and values of every position, and this model's attention does not. "
        "Leave ep out.",
        ranks_);
}

int ExpertStage::home(int64_t sequence) const { return static_cast<int>(sequence % ranks_); }

int64_t ExpertStage::cache_row(int64_t sequence) const { return parts_.flow == ExpertFlow::exflow ? sequence : sequence / ranks_; }

model::Call ExpertStage::call() {
  return {
      .weights = parts_.weights, .buffers = parts_.buffers, .axes = parts_.axes, .random = {}, .needs = {false, false}, .cache = &none_};
}

// x [batch, length, width], of sequences that are adjacent in the cache. Blocks that compute each token by itself use no cache: batch 0.
at::Tensor ExpertStage::run_block(size_t block, const at::Tensor& x, int64_t begin, int64_t row, int64_t batch) {
  const model::Card& card = parts_.model.blocks()[block]->card();
  CAIRN_CHECK(card.reads.size() == 1 && card.writes.size() == 1, "{}: generation along ep needs the standard wiring", card.name);
  model::Values values;
  values.put(card.reads.front(), x);
  blocks_.run_one(block, values, begin, row, batch);
  return values.get(card.writes.front()).flatten(0, 1);
}

ExpertStage::Rows ExpertStage::run(const std::vector<model::DecodeRow>& step, bool prompt, Rows here) {
  const auto& blocks = parts_.model.blocks();
  ++steps_;
  int64_t end = 0;
  for (const model::DecodeRow& row : step) end = std::max(end, row.position + 1);
  blocks_.grow(end);
  if (parts_.first == 0) {
    std::vector<int64_t> tokens;
    here.numbers.clear();
    for (size_t i = 0; i < step.size(); ++i) {
      if (home(step[i].cache_row) != me_) continue;
      here.numbers.push_back(static_cast<int64_t>(i));
      tokens.push_back(step[i].token);
    }
    here.values = device_index(tokens, parts_.weights.get({0}).device());
  }
  for (size_t block = parts_.first; block < parts_.last; ++block) {
    const std::string& name = blocks[block]->card().name;
    const bool logits = block + 1 == blocks.size();
    if (logits && prompt && !here.numbers.empty()) here = {{here.numbers.back()}, here.values.narrow(0, here.values.size(0) - 1, 1)};
    if (const model::RoutedBlock* layer = model::routed_block(*blocks[block]))
      here = route(*layer, name, prompt, here);
    else if (has_attention(*blocks[block]))
      here.values = attend(block, step, prompt, here);
    else if (!here.numbers.empty())
      here.values = run_block(block, here.values.unsqueeze(1), 0, 0, 0);
    else if (block == 0)
      here.values = at::empty({0, parts_.model.parameters().front().shape.at(1)}, parts_.weights.get({0}).options());
  }
  return here;
}

at::Tensor ExpertStage::attend(size_t block, const std::vector<model::DecodeRow>& step, bool prompt, const Rows& here) {
  const bool shares = parts_.flow == ExpertFlow::exflow;
  if (shares) settle_before(block);
  at::Tensor values = here.values;
  if (prompt && !here.numbers.empty()) {
    values = run_block(block, here.values.unsqueeze(0), 0, cache_row(step.front().cache_row), 1);
  } else if (!here.numbers.empty()) {
    std::vector<model::DecodeRow> rows;
    for (const int64_t number : here.numbers) {
      rows.push_back(step[static_cast<size_t>(number)]);
      rows.back().cache_row = cache_row(rows.back().cache_row);
    }
    std::vector<at::Tensor> parts;
    for (const auto& [first, count] : model::group_rows(rows, parts_.together, rows.size())) {
      const auto begin = static_cast<int64_t>(first), n = static_cast<int64_t>(count);
      parts.push_back(run_block(block, here.values.narrow(0, begin, n).unsqueeze(1), rows[first].position, rows[first].cache_row, n));
    }
    values = parts.size() == 1 ? parts.front() : at::cat(parts);
  }
  if (shares) send_cache(block, step, here);
  return values;
}

std::vector<std::string> ExpertStage::cache_names(size_t block) const {
  const std::string prefix = parts_.model.blocks()[block]->card().name + ".";
  std::vector<std::string> names;
  for (const auto& [name, tensor] : const_cast<ExpertStage*>(this)->blocks_.cache().tensors)
    if (name.starts_with(prefix)) names.push_back(name);
  return names;
}

// Sequence and position of each row, then for each of the block's tensors the rows' entries.
void ExpertStage::send_cache(size_t block, const std::vector<model::DecodeRow>& step, const Rows& here) {
  std::vector<int64_t> places;
  for (const int64_t number : here.numbers) {
    const model::DecodeRow& row = step[static_cast<size_t>(number)];
    places.insert(places.end(), {row.cache_row, row.position});
  }
  at::Tensor bytes;
  if (!places.empty()) {
    std::vector<at::Tensor> parts{device_index(places, at::kCPU).view(at::kByte)};
    for (const std::string& name : cache_names(block)) {
      const at::Tensor& cached = blocks_.cache().tensors.at(name);
      std::vector<int64_t> rows;
      for (size_t i = 0; i < places.size(); i += 2) rows.push_back(places[i] * cached.size(1) + places[i + 1]);
      parts.push_back(position_rows(cached).index_select(0, device_index(rows, cached.device())).cpu().view(at::kByte).flatten());
    }
    bytes = at::cat(parts);
  }
  pending_.push_back({block, steps_,
                      RowMessages(parts_.cache, std::vector<at::Tensor>(static_cast<size_t>(ranks_), bytes), comm::Purpose::state,
                                  parts_.model.blocks()[block]->card().name)});
}

void ExpertStage::take_cache(size_t block, const at::Tensor& bytes) {
  if (bytes.numel() == 0) return;
  const std::vector<std::string> names = cache_names(block);
  int64_t width = 2 * static_cast<int64_t>(sizeof(int64_t));
  for (const std::string& name : names) {
    const at::Tensor rows = position_rows(blocks_.cache().tensors.at(name));
    width += rows.size(1) * rows.element_size();
  }
  const int64_t count = bytes.numel() / width;
  CAIRN_CHECK(count * width == bytes.numel(), "{} bytes of keys and values, {} for each row", bytes.numel(), width);
  const at::Tensor places = bytes.narrow(0, 0, count * 16).clone().view(at::kLong);
  int64_t at = count * 16;
  for (const std::string& name : names) {
    const at::Tensor& cached = blocks_.cache().tensors.at(name);
    const at::Tensor rows = position_rows(cached);
    std::vector<int64_t> index;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = places.const_data_ptr<int64_t>()[2 * i], position = places.const_data_ptr<int64_t>()[2 * i + 1];
      CAIRN_CHECK(row >= 0 && row < cached.size(0) && position >= 0 && position < cached.size(1),
                  "keys of row {} at {} for a cache of {} x {}", row, position, cached.size(0), cached.size(1));
      index.push_back(row * cached.size(1) + position);
    }
    const int64_t length = count * rows.size(1) * rows.element_size();
    const at::Tensor entries = bytes.narrow(0, at, length).clone().view(rows.scalar_type()).view({count, -1});
    position_rows(cached).index_copy_(0, device_index(index, cached.device()), entries.to(cached.device()));
    at += length;
  }
}

void ExpertStage::settle(size_t count) {
  for (; count > 0; --count) {
    Pending& first = pending_.front();
    const std::vector<at::Tensor> arrived = first.messages.receive();
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank != me_) take_cache(first.block, arrived[static_cast<size_t>(rank)]);
    pending_.pop_front();
  }
}

// All ranks have the same list, so they wait in the same order.
void ExpertStage::settle_before(size_t block) {
  size_t needed = 0;
  for (size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].block == block && pending_[i].step < steps_) needed = i + 1;
  settle(needed);
}

void ExpertStage::copy(int64_t from, int64_t to, int64_t positions) {
  finish();
  const bool shared = parts_.flow == ExpertFlow::exflow;
  if (shared || home(from) == home(to)) {
    if (shared || home(from) == me_) blocks_.copy(cache_row(from), cache_row(to), positions);
    return;
  }
  std::vector<at::Tensor> parts(static_cast<size_t>(ranks_));
  auto& tensors = blocks_.cache().tensors;
  if (home(from) == me_) {
    std::vector<at::Tensor> bytes;
    for (const auto& [name, tensor] : tensors)
      bytes.push_back(tensor[cache_row(from)].narrow(0, 0, positions).contiguous().cpu().view(at::kByte).flatten());
    parts[static_cast<size_t>(home(to))] = at::cat(bytes);
  }
  const at::Tensor bytes =
      RowMessages(parts_.tokens, std::move(parts), comm::Purpose::state, "copied sequence").receive()[static_cast<size_t>(home(from))];
  if (home(to) != me_) return;
  int64_t at = 0;
  for (auto& [name, tensor] : tensors) {
    const at::Tensor into = tensor[cache_row(to)].narrow(0, 0, positions);
    const int64_t length = into.numel() * into.element_size();
    into.copy_(bytes.narrow(0, at, length).clone().view(into.scalar_type()).view(into.sizes()));
    at += length;
  }
}

ExpertStage::Rows ExpertStage::route(const model::RoutedBlock& layer, const std::string& name, bool prompt, const Rows& here) {
  const model::Call with = call();
  const ExpertRanks experts = expert_ranks(parts_.weights.placement(layer.expert_weight()), me_);
  const int64_t k = layer.experts().top_k, embed = here.values.size(1);
  const bool moves = parts_.flow == ExpertFlow::exflow && !prompt;
  const model::RoutedBlock::Choice choice = layer.choose(here.values, with);
  TravellingRows rows(ranks_, k, here.values.options(), embed);
  const int64_t away = rows.pack({here.numbers, here.values, choice.normed, choice.ids, choice.weights}, experts, moves ? -1 : me_);
  if (!prompt) traffic_.rows += static_cast<int64_t>(here.numbers.size()), traffic_.moved += away;
  ++traffic_.exchanges;
  rows.unpack(RowMessages(parts_.tokens, rows.take_parts(), comm::Purpose::activation, name).receive());

  const at::Tensor x = rows.residents(), normed = layer.norm(x, with);
  const TravellingRows::ExpertInput input = rows.by_expert(normed, experts);
  const at::Tensor results = rows.collect(layer.run_experts(input.rows, input.groups, with), input);
  if (!moves || k > 1) {
    ++traffic_.exchanges;
    rows.take_results(RowMessages(parts_.tokens, rows.take_parts(), comm::Purpose::activation, name).receive(), results);
  }
  return {rows.numbers(), layer.combine(x, normed, results, rows.weights(), with)};
}

}  // namespace cairn::parallel
