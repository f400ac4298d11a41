#include "model/generate/cached_blocks.h"

#include <algorithm>

#include <ATen/core/IListRef.h>

#include "kernels/aten.h"
#include "model/model.h"

namespace cairn::model {
namespace {

constexpr int64_t kInitialRoom = 64;  // positions of a new cache beyond the prompt

}  // namespace

void keep_last_position(Values& values, const std::string& name) {
  const at::Tensor all = values.take(name);
  values.put(name, all.narrow(1, all.size(1) - 1, 1).contiguous());
}

void CachedBlocks::run(Values& values, int64_t begin, int64_t first_row, int64_t batch) {
  run_range(parts_.first, parts_.last, values, begin, first_row, batch);
}

void CachedBlocks::run_one(size_t block, Values& values, int64_t begin, int64_t first_row, int64_t batch) {
  run_range(block, block + 1, values, begin, first_row, batch);
}

void CachedBlocks::run_range(size_t first, size_t last, Values& values, int64_t begin, int64_t first_row, int64_t batch) {
  KvCache part{.capacity = cache_.capacity, .places = cache_.places};
  for (const auto& [name, tensor] : cache_.tensors) part.tensors[name] = tensor.narrow(0, first_row, batch);
  for (const auto& [name, tensor] : cache_.states) part.states[name] = tensor.narrow(0, first_row, batch);
  const Call call{.weights = parts_.weights,
                  .buffers = parts_.buffers,
                  .axes = parts_.axes,
                  .random = {},
                  .needs = {false, false},
                  .slice = {begin},
                  .cache = &part};
  const auto& blocks = parts_.model.blocks();
  for (size_t i = first; i < last; ++i) {
    if (i + 1 == blocks.size()) keep_last_position(values, blocks[i]->card().reads.front());
    blocks[i]->forward(values, nullptr, call);
  }
  if (part.tensors.size() > cache_.tensors.size() || part.states.size() > cache_.states.size()) allocate(part, first_row);
}

void CachedBlocks::copy(int64_t from, int64_t to, int64_t positions) {
  for (auto& [name, tensor] : cache_.tensors) {
    const int64_t places = cache_.places_of(name, positions);
    tensor[to].narrow(0, 0, places).copy_(tensor[from].narrow(0, 0, places));
  }
  for (auto& [name, tensor] : cache_.states) tensor[to].copy_(tensor[from]);
}

void CachedBlocks::grow(int64_t end) {
  if (end <= cache_.capacity) return;
  const int64_t old = cache_.capacity;
  cache_.capacity = std::min(parts_.length_max, std::max(end + kInitialRoom, 2 * old));
  for (auto& [name, tensor] : cache_.tensors) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    const int64_t before = shape[1];
    shape[1] = cache_.places_of(name, cache_.capacity);
    if (shape[1] == before) continue;
    const at::Tensor larger = at::empty(shape, tensor.options());
    larger.narrow(1, 0, before).copy_(tensor);
    tensor = larger;
  }
}

void CachedBlocks::allocate(const KvCache& one, int64_t row) {
  const auto for_all = [&](const at::Tensor& tensor) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape[0] = parts_.rows;
    at::Tensor all = at::empty(shape, tensor.options());
    all.narrow(0, row, 1).copy_(tensor);
    return all;
  };
  cache_.places = one.places;
  for (const auto& [name, tensor] : one.tensors)
    if (!cache_.tensors.contains(name)) cache_.tensors[name] = for_all(tensor);
  for (const auto& [name, tensor] : one.states)
    if (!cache_.states.contains(name)) cache_.states[name] = for_all(tensor);
}

}  // namespace cairn::model
