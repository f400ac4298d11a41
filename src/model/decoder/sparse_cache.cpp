#include "model/decoder/sparse_cache.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tensor.h"
#include "kernels/decode_row.h"

namespace cairn::model {
namespace {

// Places that adjoin, and hold positions that are seen.
struct Run {
  int64_t first = 0, count = 0;
};

}  // namespace

int64_t SparseCache::sparse_heads(int64_t kv_heads) const {
  return std::clamp<int64_t>(pattern_.kv_heads - pattern_.dense_heads - first_, 0, kv_heads);
}

int64_t SparseCache::first_on_stride(int64_t head) const {
  const int64_t phase = pattern_.phase(first_ + head) % pattern_.stride;
  return (pattern_.stride - phase) % pattern_.stride;
}

at::Tensor& SparseCache::tensor(const std::string& what, const KvPlaces& places, const at::Tensor& like, int64_t heads) {
  at::Tensor& kept = cache_.tensors[name_ + what];
  if (!kept.defined()) {
    if (places.window > 0 || places.stride > 1) cache_.places[name_ + what] = places;
    kept = at::empty({like.size(0), places.count(cache_.capacity), heads, like.size(3)}, like.options());
  }
  return kept;
}

void SparseCache::append(const at::Tensor& k, const at::Tensor& v, int64_t begin) {
  const int64_t block = pattern_.block, ring_size = pattern_.local_blocks * block, length = k.size(1), end = begin + length;
  CAIRN_CHECK(end <= cache_.capacity, "{}: position {} is beyond the {} of the KV cache", name_, end, cache_.capacity);
  const int64_t sparse = sparse_heads(k.size(2));
  const std::array<std::pair<const char*, const at::Tensor*>, 2> both{{{".k", &k}, {".v", &v}}};
  for (const auto& [what, part] : both) {
    if (sparse < k.size(2))
      tensor(what, {}, *part, k.size(2) - sparse).narrow(1, begin, length).copy_(part->narrow(2, sparse, k.size(2) - sparse));
    if (sparse == 0) continue;
    const at::Tensor ring = tensor(std::string(what) + ".ring", {.window = ring_size}, *part, sparse);
    for (int64_t at = std::max(begin, end - ring_size); at < end;) {  // to the end of the ring, and from its start
      const int64_t place = at % ring_size, count = std::min(end - at, ring_size - place);
      ring.narrow(1, place, count).copy_(part->narrow(1, at - begin, count).narrow(2, 0, sparse));
      at += count;
    }
    const at::Tensor list = tensor(std::string(what) + ".list", {.block = block, .stride = pattern_.stride}, *part, sparse);
    for (int64_t head = 0; head < sparse; ++head) {
      const int64_t first = first_on_stride(head);
      // The head's blocks that these positions touch: number t in the list is block t * stride + first.
      const int64_t from = begin / block;
      for (int64_t t = from <= first ? 0 : (from - first + pattern_.stride - 1) / pattern_.stride;; ++t) {
        const int64_t start = (t * pattern_.stride + first) * block, low = std::max(start, begin), high = std::min(start + block, end);
        if (start >= end) break;
        if (low < high)
          list.select(2, head)
              .narrow(1, t * block + low - start, high - low)
              .copy_(part->select(2, head).narrow(1, low - begin, high - low));
      }
    }
  }
}

at::Tensor SparseCache::attend(const at::Tensor& q, int64_t position) const {
  const int64_t block = pattern_.block, ring_size = pattern_.local_blocks * block, row = position / block;
  const auto find = [&](const char* what) {
    const auto found = cache_.tensors.find(name_ + what);
    return found == cache_.tensors.end() ? at::Tensor() : found->second;
  };
  const at::Tensor k_ring = find(".k.ring"), v_ring = find(".v.ring"), k_list = find(".k.list"), v_list = find(".v.list"),
                   k_all = find(".k"), v_all = find(".v");
  const int64_t sparse = k_ring.defined() ? k_ring.size(2) : 0, dense = k_all.defined() ? k_all.size(2) : 0;
  const int64_t group = q.size(2) / (sparse + dense);
  const at::Tensor out = at::empty(q.sizes(), q.options());
  if (dense > 0)
    out.narrow(2, sparse * group, dense * group)
        .copy_(kernels::attend(q.narrow(2, sparse * group, dense * group), k_all.narrow(1, 0, position + 1),
                               v_all.narrow(1, 0, position + 1), {.query_offset = position})
                   .out);
  if (sparse == 0) return out;
  // In the ring: the places of this block up to the position, and, once it has gone round, those of the other blocks of the window.
  const int64_t place = position % ring_size, next_block = place / block * block + block;
  std::vector<Run> ring{{0, place + 1}};
  if (row >= pattern_.local_blocks && next_block < ring_size) ring.push_back({next_block, ring_size - next_block});
  // In the list: the head's blocks before the window.
  const auto listed = [&](int64_t head) {
    const int64_t before = row - pattern_.local_blocks + 1 - first_on_stride(head);  // blocks from the first on the stride to the window
    return before <= 0 ? 0 : (before + pattern_.stride - 1) / pattern_.stride * block;
  };
  if (kernels::is_cpu_float(q)) {
    const auto rows = [](const at::Tensor& x, int64_t b, int64_t head) {
      return x.const_data_ptr<float>() + b * x.stride(0) + head * x.stride(2);
    };
    const int64_t positions_max = ring_size + k_list.size(1), scratch = positions_max + 64;
    std::vector<float> scores(static_cast<size_t>(scratch * at::get_num_threads()));
    const at::Tensor queries = q.contiguous();
    kernels::parallel_tasks(q.size(0) * sparse * group, [&](int64_t task, int thread) {
      const int64_t b = task / (sparse * group), head = task % (sparse * group), kv = head / group;
      std::array<kernels::KeyRun, 3> runs;
      size_t count = 0;
      if (const int64_t n = listed(kv); n > 0) runs[count++] = {rows(k_list, b, kv), rows(v_list, b, kv), k_list.stride(1), n};
      for (const Run& run : ring)
        runs[count++] = {rows(k_ring, b, kv) + run.first * k_ring.stride(1), rows(v_ring, b, kv) + run.first * v_ring.stride(1),
                         k_ring.stride(1), run.count};
      kernels::attend_runs(out.mutable_data_ptr<float>() + (b * q.size(2) + head) * q.size(3),
                           queries.const_data_ptr<float>() + (b * q.size(2) + head) * q.size(3), std::span(runs.data(), count), q.size(3),
                           static_cast<float>(1 / std::sqrt(static_cast<double>(q.size(3)))), scores.data() + thread * scratch);
    });
    return out;
  }
  for (int64_t head = 0; head < sparse; ++head) {
    const auto keys = [&](const at::Tensor& in_list, const at::Tensor& in_ring) {
      std::vector<at::Tensor> parts{in_list.narrow(2, head, 1).narrow(1, 0, listed(head))};
      for (const Run& run : ring) parts.push_back(in_ring.narrow(2, head, 1).narrow(1, run.first, run.count));
      return at::cat(parts, 1);
    };
    out.narrow(2, head * group, group)
        .copy_(kernels::attend(q.narrow(2, head * group, group), keys(k_list, k_ring), keys(v_list, v_ring), {.causal = false}).out);
  }
  return out;
}

}  // namespace cairn::model
