// Attention on the CPU: checks the arguments, renumbers documents, cuts the work into tasks and runs them on all threads.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_problem.h"
#include "kernels/block_pattern.h"
#include "kernels/cpu/parallel.h"
#include "kernels/low_precision.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kFewQueries = 4;      // up to this many queries, panels of 48 waste more than they save
constexpr int64_t kBlock = 96;          // tasks begin at multiples of this: whole panels of queries and of keys
constexpr int64_t kPatternBlock = 64;   // the same with a pattern; and at whole blocks of it
constexpr int64_t kTasksPerThread = 2;  // fewer tasks than this, and heads are split

bool fits(const at::Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat && x.dim() == 4 && (x.size(3) == 1 || x.stride(3) == 1);
}

HeadRows rows_of(const at::Tensor& x) { return {x.mutable_data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)}; }

// Panels of queries lie at whole blocks of a pattern. (Few queries are computed one by one, from any position.)
void check_lies_at_blocks(const AttentionOptions& options) {
  CAIRN_CHECK(options.pattern == nullptr ||
                  (options.query_offset % options.pattern->block == 0 && options.key_offset % options.pattern->block == 0),
              "queries from {} and keys from {} in blocks of {}", options.query_offset, options.key_offset, options.pattern->block);
}

void check_shapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
  CAIRN_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
              "attention over q {}, k {}, v {}", c10::str(q.sizes()), c10::str(k.sizes()), c10::str(v.sizes()));
  CAIRN_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "{} query heads over {} key heads", q.size(2), k.size(2));
  CAIRN_CHECK((options.query_documents == nullptr) == (options.key_documents == nullptr), "document ids for queries or keys only");
  CAIRN_CHECK(options.document_starts == nullptr || (options.document_starts->dim() == 2 && options.document_starts->size(0) == q.size(0)),
              "document starts of {} for {} rows", c10::str(options.document_starts->sizes()), q.size(0));
}

// Document ids as small integers: the rank of each id among the ids of its row's keys; -1 where no key has it.
struct Documents {
  std::vector<int32_t> queries, keys;

  explicit Documents(const AttentionOptions& options) {
    if (options.key_documents == nullptr) return;
    const at::Tensor q = options.query_documents->to(at::kLong).contiguous(), k = options.key_documents->to(at::kLong).contiguous();
    for (int64_t row = 0; row < k.size(0); ++row) {
      const int64_t *query_ids = q.const_data_ptr<int64_t>() + row * q.size(1), *key_ids = k.const_data_ptr<int64_t>() + row * k.size(1);
      std::vector<int64_t> known(key_ids, key_ids + k.size(1));
      std::sort(known.begin(), known.end());
      known.erase(std::unique(known.begin(), known.end()), known.end());
      const auto number = [&known](int64_t id) {
        const auto found = std::lower_bound(known.begin(), known.end(), id);
        return found != known.end() && *found == id ? static_cast<int32_t>(found - known.begin()) : -1;
      };
      std::transform(query_ids, query_ids + q.size(1), std::back_inserter(queries), number);
      std::transform(key_ids, key_ids + k.size(1), std::back_inserter(keys), number);
    }
  }
};

AttentionProblem problem_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                            const AttentionOptions& options, const Documents& documents) {
  AttentionProblem p;
  p.batch = q.size(0), p.q_len = q.size(1), p.heads = q.size(2), p.head_dim = q.size(3), p.k_len = k.size(1), p.kv_heads = k.size(2);
  p.scale = static_cast<float>(options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(p.head_dim)));
  p.causal = options.causal;
  p.window = options.window;
  p.shift = options.query_offset - options.key_offset;
  p.pattern = options.pattern, p.first_kv_head = options.first_kv_head;
  p.query_offset = options.query_offset, p.key_offset = options.key_offset;
  if (options.key_documents != nullptr) {
    p.query_documents = documents.queries.data();
    p.key_documents = documents.keys.data();
  }
  p.q = rows_of(q), p.k = rows_of(k), p.v = rows_of(v), p.out = rows_of(out);
  p.lse = lse.mutable_data_ptr<float>();
  return p;
}

// Tasks of one batch row and key head each; cut along the queries or the keys as well where there are too few for the threads.
enum class Cut { none, queries, keys };
void add_tasks(std::vector<AttentionTask>& tasks, const AttentionProblem& p, Cut cut, int64_t pieces) {
  const int64_t length = cut == Cut::keys ? p.k_len : p.q_len;
  const int64_t unit = p.pattern ? std::max(kPatternBlock, p.pattern->block) : kBlock;
  const int64_t piece = cut == Cut::none ? length : std::max(unit, (length / pieces + unit - 1) / unit * unit);
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t head = 0; head < p.kv_heads; ++head)
      for (int64_t begin = 0; begin < length; begin += piece) {
        AttentionTask task{.batch = batch, .kv_head = head, .query_begin = 0, .query_end = p.q_len, .key_begin = 0, .key_end = p.k_len};
        (cut == Cut::keys ? task.key_begin : task.query_begin) = begin;
        (cut == Cut::keys ? task.key_end : task.query_end) = std::min(length, begin + piece);
        task.wants_dq = cut != Cut::keys;
        task.wants_dkv = cut != Cut::queries;
        tasks.push_back(task);
      }
}

template <class Run>
void run_tasks(const AttentionProblem& p, std::vector<AttentionTask>& tasks, int64_t scratch_floats, const Run& run) {
  const int64_t stride = (scratch_floats + 31) / 16 * 16;  // each thread begins on a cache line of its own
  const at::Tensor scratch =
      at::empty({stride * std::min<int64_t>(at::get_num_threads(), static_cast<int64_t>(tasks.size())) + 16}, at::kFloat);
  float* start = scratch.mutable_data_ptr<float>();
  parallel_tasks(static_cast<int64_t>(tasks.size()), [&](int64_t index, int thread) {
    AttentionTask task = tasks[static_cast<size_t>(index)];
    task.scratch = start + thread * stride;
    run(p, task);
  });
}

}  // namespace

void attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const AttentionOptions& options) {
  check_shapes(q, k, v, options);
  if (attention_on_cuda(out, lse, q, k, v, options)) return;
  if (is_half_precision(q)) {
    const at::Tensor wide = empty_widened(out);
    attention(wide, lse, widened(q), widened(k), widened(v), options);
    out.copy_(wide);
    return;
  }
  if (!(fits(out) && fits(q) && fits(k) && fits(v) && lse.is_contiguous() && lse.scalar_type() == at::kFloat))
    return reference::attention(out, lse, q, k, v, options);
  const Documents documents(options);
  const AttentionProblem p = problem_of(q, k, v, out, lse, options, documents);
  if (p.q_len <= kFewQueries) {
    const at::Tensor scores = at::empty({at::get_num_threads() * (p.k_len + 16)}, at::kFloat);
    float* start = scores.mutable_data_ptr<float>();
    return parallel_tasks(p.batch * p.heads, [&](int64_t task, int thread) {
      attention_decode_task(p, task / p.heads, task % p.heads, start + thread * (p.k_len + 16));
    });
  }
  check_lies_at_blocks(options);
  std::vector<AttentionTask> tasks;
  const int64_t wanted = at::get_num_threads() * kTasksPerThread, whole = p.batch * p.kv_heads;
  const bool split = at::get_num_threads() > 1 && whole > 0 && whole < wanted;
  add_tasks(tasks, p, split ? Cut::queries : Cut::none, split ? (wanted + whole - 1) / whole : 1);
  if (p.pattern) return run_tasks(p, tasks, block_forward_scratch(p), block_forward_task);
  run_tasks(p, tasks, attention_forward_scratch(p), attention_forward_task);
}

void attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const AttentionOptions& options) {
  check_shapes(q, k, v, options);
  if (attention_backward_on_cuda(dq, dk, dv, dout, q, k, v, out, lse, options)) return;
  if (is_half_precision(q)) {
    const at::Tensor wide_q = empty_widened(dq), wide_k = empty_widened(dk), wide_v = empty_widened(dv);
    attention_backward(wide_q, wide_k, wide_v, widened(dout), widened(q), widened(k), widened(v), widened(out), lse, options);
    dq.copy_(wide_q), dk.copy_(wide_k), dv.copy_(wide_v);
    return;
  }
  const at::Tensor* all[] = {&dq, &dk, &dv, &dout, &q, &k, &v, &out};
  if (!std::all_of(std::begin(all), std::end(all), [](const at::Tensor* x) { return fits(*x); }) || !lse.is_contiguous() ||
      lse.scalar_type() != at::kFloat)
    return reference::attention_backward(dq, dk, dv, dout, q, k, v, out, lse, options);
  const Documents documents(options);
  AttentionProblem p = problem_of(q, k, v, out, lse, options, documents);
  p.dout = rows_of(dout), p.dq = rows_of(dq), p.dk = rows_of(dk), p.dv = rows_of(dv);
  check_lies_at_blocks(options);
  std::vector<AttentionTask> tasks;
  const int64_t threads = at::get_num_threads(), whole = p.batch * p.kv_heads;
  if (threads > 1 && whole > 0 &&
      whole < threads) {  // dkv and dq as separate tasks cost seven products instead of five, but no thread idles
    const int64_t pieces = (threads * kTasksPerThread + whole - 1) / whole;
    add_tasks(tasks, p, Cut::keys, pieces);
    add_tasks(tasks, p, Cut::queries, pieces);
  } else {
    add_tasks(tasks, p, Cut::none, 1);
  }
  if (p.pattern) return run_tasks(p, tasks, block_backward_scratch(p), block_backward_task);
  run_tasks(p, tasks, attention_backward_scratch(p), attention_backward_task);
}

AttentionOutput attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
  check_shapes(q, k, v, options);
  if (std::optional<AttentionOutput> found = attend_on_cuda(q, k, v, options)) return {found->out.contiguous(), found->lse.contiguous()};
  const auto sums = is_half_precision(q) ? q.options().dtype(at::kFloat) : q.options();
  AttentionOutput made{at::empty(q.sizes(), q.options()), at::empty({q.size(0), q.size(2), q.size(1)}, sums)};
  attention(made.out, made.lse, q, k, v, options);
  return made;
}

AttentionGradients attention_gradients(const AttentionGradients& room, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, const AttentionOptions& options) {
  check_shapes(q, k, v, options);
  if (std::optional<AttentionGradients> found = attention_gradients_on_cuda(dout, q, k, v, out, lse, options)) return *std::move(found);
  attention_backward(room.q, room.k, room.v, dout, q, k, v, out, lse, options);
  return room;
}

}  // namespace cairn::kernels
