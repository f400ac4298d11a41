// Block-sparse attention on a GPU: makes the lists of pairs, keeps them on the device, and turns tensors into pointers.
#include "kernels/attention/block_attention_cuda.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <vector>

#include "kernels/aten.h"
#include "kernels/attention.h"
#include "kernels/attention/block_attention_kernel.h"
#include "kernels/block_pattern.h"
#include "kernels/cuda/tensor.h"
#include "kernels/low_precision.h"

namespace cairn::kernels {
namespace {

// Lists of tiles longer than this many times the mean are cut: strided tiles are seen by every later panel, others by a window.
constexpr int64_t kLongList = 4, kShortestPart = 64;

at::Tensor on_device(const void* from, int64_t words, const at::Tensor& like) {
  const at::TensorOptions ints = at::TensorOptions().dtype(at::kInt);
  if (words == 0) return at::zeros({1}, ints.device(like.device()));
  return at::from_blob(const_cast<void*>(from), {words}, ints).clone().to(like.device());
}

template <class T>
at::Tensor on_device(const std::vector<T>& from, const at::Tensor& like) {
  return on_device(from.data(), static_cast<int64_t>(from.size() * sizeof(T) / sizeof(int32_t)), like);
}

struct DeviceLists {
  at::Tensor panel_starts, of_panel, tile_starts, of_tile, parts, sums;
  BlockPairs sizes;  // without its lists
  int64_t parts_per_head = 0, sums_per_head = 0, partials_per_head = 0;
};

// Cuts the tiles' lists into parts, longest first; heads with fewer are filled with tiles of -1.
void cut_lists(DeviceLists& made, const BlockPairs& pairs, const at::Tensor& like) {
  const int64_t mean = static_cast<int64_t>(pairs.of_tile.size()) / std::max<int64_t>(1, pairs.heads * pairs.tiles);
  const int64_t part_max = std::max(kShortestPart, kLongList * mean);
  std::vector<std::vector<BlockPart>> parts(static_cast<size_t>(pairs.heads));
  std::vector<std::vector<BlockSum>> sums(static_cast<size_t>(pairs.heads));
  for (int64_t h = 0; h < pairs.heads; ++h) {
    int32_t partials = 0;
    for (int64_t tile = 0; tile < pairs.tiles; ++tile) {
      const auto at = static_cast<size_t>(h * (pairs.tiles + 1) + tile);
      const int64_t length = pairs.tile_starts[at + 1] - pairs.tile_starts[at],
                    count = std::max<int64_t>(1, (length + part_max - 1) / part_max);
      const auto number = static_cast<int32_t>(tile);
      if (count > 1) sums[static_cast<size_t>(h)].push_back({number, partials, static_cast<int32_t>(count)});
      for (int64_t i = 0; i < count; ++i)
        parts[static_cast<size_t>(h)].push_back({number, static_cast<int32_t>(length * i / count),
                                                 static_cast<int32_t>(length * (i + 1) / count), count > 1 ? partials++ : -1});
    }
    std::stable_sort(parts[static_cast<size_t>(h)].begin(), parts[static_cast<size_t>(h)].end(),
                     [](const BlockPart& a, const BlockPart& b) { return a.end - a.begin > b.end - b.begin; });
    made.parts_per_head = std::max(made.parts_per_head, static_cast<int64_t>(parts[static_cast<size_t>(h)].size()));
    made.sums_per_head = std::max(made.sums_per_head, static_cast<int64_t>(sums[static_cast<size_t>(h)].size()));
    made.partials_per_head = std::max<int64_t>(made.partials_per_head, partials);
  }
  std::vector<BlockPart> all_parts;
  std::vector<BlockSum> all_sums;
  for (size_t h = 0; h < parts.size(); ++h) {
    parts[h].resize(static_cast<size_t>(made.parts_per_head), BlockPart{-1, 0, 0, -1});
    sums[h].resize(static_cast<size_t>(made.sums_per_head), BlockSum{-1, 0, 0});
    all_parts.insert(all_parts.end(), parts[h].begin(), parts[h].end());
    all_sums.insert(all_sums.end(), sums[h].begin(), sums[h].end());
  }
  made.parts = on_device(all_parts, like);
  made.sums = on_device(all_sums, like);
}

std::shared_ptr<const DeviceLists> make_lists(const BlockPattern& pattern, const BlockSpan& span, const at::Tensor& like) {
  const BlockPairs pairs = block_pairs(pattern, span);
  auto made = std::make_shared<DeviceLists>();
  made->panel_starts = on_device(pairs.panel_starts, like);
  made->of_panel = on_device(pairs.of_panel, like);
  made->tile_starts = on_device(pairs.tile_starts, like);
  made->of_tile = on_device(pairs.of_tile, like);
  made->sizes = {.heads = pairs.heads, .panels = pairs.panels, .tiles = pairs.tiles, .tile_keys = pairs.tile_keys};
  cut_lists(*made, pairs, like);
  return made;
}

}  // namespace

// The lists of the latest few shapes. Layers with the same pattern share one.
class BlockListCache {
 public:
  std::shared_ptr<const DeviceLists> find(const BlockPattern& pattern, const BlockSpan& span, const at::Tensor& like) {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.span == span && entry.device == like.device()) return entry.lists;
    entries_.push_front({span, like.device(), make_lists(pattern, span, like)});
    if (entries_.size() > kKept) entries_.pop_back();
    return entries_.front().lists;
  }

 private:
  static constexpr size_t kKept = 8;
  struct Entry {
    BlockSpan span;
    at::Device device;
    std::shared_ptr<const DeviceLists> lists;
  };
  std::mutex mutex_;
  std::deque<Entry> entries_;
};

std::shared_ptr<BlockListCache> make_block_list_cache() { return std::make_shared<BlockListCache>(); }

namespace {

bool fits(const at::Tensor& x, const at::Tensor& like) {
  const auto aligned = [&](int64_t stride) { return stride % 8 == 0; };
  return is_on_gpu(x) && x.device() == like.device() && x.scalar_type() == like.scalar_type() && is_half_precision(x) && x.stride(3) == 1 &&
         aligned(x.stride(0)) && aligned(x.stride(1)) && aligned(x.stride(2)) && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

BlockRows rows_of(const at::Tensor& x) { return {x.mutable_data_ptr(), x.stride(0), x.stride(1), x.stride(2)}; }

bool has_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  return o.pattern != nullptr && fits(q, q) && fits(k, q) && fits(v, q) && o.key_documents == nullptr && q.numel() > 0 && k.numel() > 0 &&
         o.query_offset % o.pattern->block == 0 && o.key_offset % o.pattern->block == 0 &&
         has_block_kernel(q.size(3), std::min(o.pattern->block, BlockPairs::kPanel));
}

std::shared_ptr<const DeviceLists> lists_of(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& o) {
  const BlockSpan span{.query_offset = o.query_offset,
                       .queries = q.size(1),
                       .key_offset = o.key_offset,
                       .keys = k.size(1),
                       .first_head = o.first_kv_head,
                       .heads = k.size(2)};
  return o.pattern->lists ? o.pattern->lists->find(*o.pattern, span, q) : make_lists(*o.pattern, span, q);
}

BlockLaunch launch_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o, const DeviceLists& lists) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const auto pointer = [](const at::Tensor& x) { return x.const_data_ptr<int32_t>(); };
  int row_shift = 6;
  while (row_shift > 4 && (int64_t{1} << row_shift) > o.pattern->block) --row_shift;
  return {.half = q.scalar_type() == at::kHalf,
          .lists = {.panel_starts = pointer(lists.panel_starts),
                    .of_panel = pointer(lists.of_panel),
                    .tile_starts = pointer(lists.tile_starts),
                    .of_tile = pointer(lists.of_tile),
                    .heads = narrow(lists.sizes.heads),
                    .panels = narrow(lists.sizes.panels),
                    .tiles = narrow(lists.sizes.tiles),
                    .tile_keys = narrow(lists.sizes.tile_keys),
                    .row_shift = row_shift},
          .batch = narrow(q.size(0)),
          .q_len = narrow(q.size(1)),
          .k_len = narrow(k.size(1)),
          .heads = narrow(q.size(2)),
          .kv_heads = narrow(k.size(2)),
          .head_dim = narrow(q.size(3)),
          .shift = narrow(o.query_offset - o.key_offset),
          .scale = static_cast<float>(o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(q.size(3)))),
          .q = rows_of(q),
          .k = rows_of(k),
          .v = rows_of(v),
          .out = {},
          .dout = {},
          .dq = {},
          .dk = {},
          .dv = {},
          .lse = nullptr,
          .delta = nullptr,
          .parts = reinterpret_cast<const BlockPart*>(pointer(lists.parts)),
          .sums = reinterpret_cast<const BlockSum*>(pointer(lists.sums)),
          .parts_per_head = narrow(lists.parts_per_head),
          .sums_per_head = narrow(lists.sums_per_head),
          .partials_per_head = narrow(lists.partials_per_head),
          .partial = nullptr};
}

}  // namespace

std::optional<AttentionOutput> block_attend_on_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const AttentionOptions& options) {
  if (!has_kernel(q, k, v, options)) return std::nullopt;
  const CudaDeviceGuard device(q.device());
  const std::shared_ptr<const DeviceLists> lists = lists_of(q, k, options);
  AttentionOutput made{at::empty(q.sizes(), q.options()), at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  BlockLaunch launch = launch_of(q, k, v, options, *lists);
  launch.out = rows_of(made.out), launch.lse = made.lse.mutable_data_ptr<float>();
  check_launch(launch_block_forward(launch, stream_of(q)), "block-sparse attention");
  return made;
}

std::optional<AttentionGradients> block_gradients_on_cuda(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                          const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                                          const AttentionOptions& options) {
  if (!has_kernel(q, k, v, options) || !fits(dout, q) || !fits(out, q) || !all_fp32(q, lse)) return std::nullopt;
  const CudaDeviceGuard device(q.device());
  const std::shared_ptr<const DeviceLists> lists = lists_of(q, k, options);
  AttentionGradients made{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
  const at::Tensor delta = at::empty_like(lse);
  const at::Tensor partial = at::empty(
      {std::max<int64_t>(1, k.size(0) * k.size(2) * lists->partials_per_head * 2 * lists->sizes.tile_keys * k.size(3))}, lse.options());
  BlockLaunch launch = launch_of(q, k, v, options, *lists);
  launch.out = rows_of(out), launch.dout = rows_of(dout), launch.dq = rows_of(made.q), launch.dk = rows_of(made.k);
  launch.dv = rows_of(made.v), launch.lse = lse.mutable_data_ptr<float>(), launch.delta = delta.mutable_data_ptr<float>();
  launch.partial = partial.mutable_data_ptr<float>();
  check_launch(launch_block_backward(launch, stream_of(q)), "block-sparse attention gradient");
  return made;
}

}  // namespace cairn::kernels
