// cuDNN's scaled dot product attention on ragged tensors. A graph (plan) is built once per shape and cached: building takes half a second.
// The batch of the graph is the number of sequences; ragged offsets say where each sequence begins in each tensor. As sequences change with
// every batch, graphs are built for the next power of two, and the tables are padded with empty sequences.
#include "kernels/attention/cudnn_varlen.h"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <ATen/cudnn/Handle.h>
#include <cudnn_frontend.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/attention/varlen_tables_kernel.h"
#include "kernels/cuda/tensor.h"

namespace cairn::kernels {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr int64_t kAligned = 16;  // bytes: what plans expect of every address
constexpr int64_t kSequencesMax = 1 << 14;
constexpr int64_t kHeadDimStep = 16;  // for other multiples of 8 cuDNN's workspace has a whole row for each sequence

// The tensors of a graph by their cuDNN uid. Ragged tensors have a table of the offset of each sequence.
enum Name : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kScale, kQueries, kKeys, kTables };
enum Table : int { kOfQ, kOfK, kOfV, kOfHeads, kOfKeyHeads, kOfLse };  // kOfHeads: of what lies like out; kOfKeyHeads: like dk

// Not the next power of four: cuDNN needs as long to skip an empty sequence as for thirty positions.
int64_t planned_sequences(int64_t sequences) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(sequences, 4))));
}

// The cache key of a plan.
struct Shape {
  bool backward;
  c10::DeviceIndex device;
  bool half, causal;
  int64_t sequences, length, heads, kv_heads, head_dim;
  int64_t positions;                                      // upper bound over all sequences; backward only
  std::array<int64_t, 3> position_strides, head_strides;  // of q, k and v
  auto operator<=>(const Shape&) const = default;

  Shape(const VarlenAttention& a, bool back)
      : backward(back),
        device(a.q.device().index()),
        half(a.q.scalar_type() == at::kHalf),
        causal(a.causal),
        sequences(planned_sequences(a.sequences_max)),
        length(a.q.size(1)),
        heads(a.q.size(2)),
        kv_heads(a.k.size(2)),
        head_dim(a.q.size(3)),
        positions(back ? (a.q.size(0) * a.q.size(1) + kWhole - 1) / kWhole * kWhole : 0),
        position_strides{a.q.stride(1), a.k.stride(1), a.v.stride(1)},
        head_strides{a.q.stride(2), a.k.stride(2), a.v.stride(2)} {}

 private:
  static constexpr int64_t kWhole = 64;  // keeps workspace parts aligned
};

struct Plan {
  fe::graph::Graph graph;
  int64_t workspace_bytes = 0;
};

class GraphBuilder {
 public:
  GraphBuilder(const Shape& shape, fe::graph::Graph& graph) : s_(shape), graph_(graph) {
    graph_.set_io_data_type(s_.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    scale_ = graph_.tensor(of({1, 1, 1, 1}, {1, 1, 1, 1}).set_uid(kScale).set_is_pass_by_value(true).set_data_type(fe::DataType_t::FLOAT));
    const auto lengths = of({s_.sequences, 1, 1, 1}, {1, 1, 1, 1}).set_data_type(fe::DataType_t::INT32);
    queries_ = graph_.tensor(fe::graph::Tensor_attributes(lengths).set_uid(kQueries));
    keys_ = graph_.tensor(fe::graph::Tensor_attributes(lengths).set_uid(kKeys));
    for (int t = 0; t < kVarlenTensors; ++t)
      tables_[static_cast<size_t>(t)] =
          graph_.tensor(of({s_.sequences + 1, 1, 1, 1}, {1, 1, 1, 1}).set_uid(kTables + t).set_data_type(fe::DataType_t::INT32));
  }

  void forward() {
    const auto how = fe::graph::SDPA_attributes().set_generate_stats(true).set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    const auto [out, lse] = graph_.sdpa(q(), k(), v(), with_mask(how));
    place(out, kOut, like_out());
    place(lse, kLse, like_lse());
  }

  void backward() {
    const auto how =
        with_mask(fe::graph::SDPA_backward_attributes().set_max_total_seq_len_q(s_.positions).set_max_total_seq_len_kv(s_.positions));
    const auto [dq, dk, dv] = graph_.sdpa_backward(q(), k(), v(), graph_.tensor(like_out().set_uid(kOut)),
                                                   graph_.tensor(like_out().set_uid(kDout)), graph_.tensor(like_lse().set_uid(kLse)), how);
    place(dq, kDq, like_out());
    place(dk, kDk, like_keys());
    place(dv, kDv, like_keys());
  }

 private:
  using Attributes = fe::graph::Tensor_attributes;
  static Attributes of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
    return Attributes().set_dim(sizes).set_stride(strides);
  }
  // A ragged tensor: the table gives the offset of each sequence, so the batch stride is unused.
  Attributes sequences(int64_t heads, int64_t width, int64_t position_stride, int64_t head_stride, Table table) const {
    return of({s_.sequences, heads, s_.length, width}, {s_.length * position_stride, head_stride, position_stride, 1})
        .set_ragged_offset(tables_[static_cast<size_t>(table)]);
  }
  Attributes like_out() const { return sequences(s_.heads, s_.head_dim, s_.heads * s_.head_dim, s_.head_dim, kOfHeads); }
  Attributes like_keys() const { return sequences(s_.kv_heads, s_.head_dim, s_.kv_heads * s_.head_dim, s_.head_dim, kOfKeyHeads); }
  Attributes like_lse() const { return sequences(s_.heads, 1, s_.heads, 1, kOfLse).set_data_type(fe::DataType_t::FLOAT); }
  Tensor q() { return input(kQ, s_.heads, kOfQ); }
  Tensor k() { return input(kK, s_.kv_heads, kOfK); }
  Tensor v() { return input(kV, s_.kv_heads, kOfV); }
  Tensor input(Name name, int64_t heads, Table table) {
    const auto i = static_cast<size_t>(table);
    return graph_.tensor(sequences(heads, s_.head_dim, s_.position_strides[i], s_.head_strides[i], table).set_uid(name));
  }

  template <class How>
  How with_mask(How how) const {
    return how.set_causal_mask(s_.causal).set_attn_scale(scale_).set_padding_mask(true).set_seq_len_q(queries_).set_seq_len_kv(keys_);
  }

  static void place(const Tensor& result, Name name, Attributes like) {
    result->set_output(true)
        .set_uid(name)
        .set_dim(like.get_dim())
        .set_stride(like.get_stride())
        .set_ragged_offset(like.get_ragged_offset());
    if (name == kLse) result->set_data_type(fe::DataType_t::FLOAT);
  }

  const Shape& s_;
  fe::graph::Graph& graph_;
  Tensor scale_, queries_, keys_;
  std::array<Tensor, kVarlenTensors> tables_;
};

// A bound for the workspace: fp32 sums of dq, and of dk and dv where query heads share keys. On GPUs of compute capability 8 and 12 cuDNN
// ignores the number of positions and asks for a whole row per sequence; then FlashAttention-2, which needs no workspace, is used.
int64_t workspace_bytes_max(const Shape& shape) {
  constexpr int64_t kBesides = 64 << 20;
  const int64_t sums = shape.positions * shape.heads * (shape.head_dim + 1) * static_cast<int64_t>(sizeof(float));
  return kBesides + 2 * (shape.heads == shape.kv_heads ? 1 : 3) * sums;
}

// Null where cuDNN has no plan.
std::unique_ptr<Plan> planned(const Shape& shape) try {
  auto plan = std::make_unique<Plan>();
  GraphBuilder builder(shape, plan->graph);
  shape.backward ? builder.backward() : builder.forward();
  if (plan->graph.build(at::native::getCudnnHandle(), {fe::HeurMode_t::A}).is_bad()) return nullptr;
  if (plan->graph.get_workspace_size(plan->workspace_bytes).is_bad()) return nullptr;
  return plan->workspace_bytes <= workspace_bytes_max(shape) ? std::move(plan) : nullptr;
} catch (const std::runtime_error&) {
  return nullptr;
}

// The plan cache of the process. cuDNN does not allow two threads to execute one plan at a time, so execution holds the lock.
class Plans {
 public:
  const Plan* find(const Shape& shape) {
    const std::lock_guard lock(mutex_);
    auto found = plans_.find(shape);
    if (found == plans_.end()) found = plans_.emplace(shape, planned(shape)).first;
    return found->second.get();
  }

  void start(const Plan& plan, std::unordered_map<int64_t, void*>& tensors, const at::Tensor& like) {
    const at::Tensor workspace = at::empty({plan.workspace_bytes}, like.options().dtype(at::kByte));
    const std::lock_guard lock(mutex_);
    fe::error_t ended = plan.graph.execute(at::native::getCudnnHandle(), tensors, workspace.mutable_data_ptr());
    CAIRN_CHECK(ended.is_good(), "variable-length attention by cuDNN did not start: {}", ended.get_message());
  }

 private:
  std::mutex mutex_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

Plans& plans() {
  static auto* const all = new Plans;  // never destroyed: cuDNN may be gone by then
  return *all;
}

// Rows must be adjacent, offsets fit into 32 bits, and everything is aligned.
bool is_possible(const at::Tensor& x) {
  const auto aligned = [](auto bytes) { return bytes % kAligned == 0; };
  return (x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1)) &&
         x.size(0) * x.size(1) * x.stride(1) <= std::numeric_limits<int32_t>::max() && aligned(x.stride(1) * x.element_size()) &&
         aligned(x.stride(2) * x.element_size()) && aligned(reinterpret_cast<intptr_t>(x.const_data_ptr()));
}

const Plan* plan_for(const VarlenAttention& a, const Shape& shape) {
  const bool possible = shape.head_dim % kHeadDimStep == 0 && shape.sequences <= kSequencesMax &&
                        a.q.numel() <= std::numeric_limits<int32_t>::max() && is_possible(a.q) && is_possible(a.k) && is_possible(a.v);
  return possible ? plans().find(shape) : nullptr;
}

void start(const Plan& plan, const Shape& shape, const VarlenAttention& a, std::unordered_map<int64_t, void*> tensors) {
  constexpr int64_t kWords = kAligned / sizeof(int32_t);
  const int64_t pitch = (shape.sequences / kWords + 1) * kWords;
  const at::Tensor tables = at::empty({1 + kVarlenTensors, pitch}, a.starts.options());
  VarlenTablesLaunch launch{.tables = tables.mutable_data_ptr<int32_t>(),
                            .pitch = pitch,
                            .sequences = shape.sequences,
                            .starts = a.starts.const_data_ptr<int32_t>(),
                            .rows = a.starts.size(0),
                            .documents = a.starts.size(1),
                            .length = shape.length,
                            .tensors = kVarlenTensors,
                            .strides = {}};
  const auto stride = [&](Table table) -> int32_t& { return launch.strides[table]; };
  for (const Table table : {kOfQ, kOfK, kOfV}) stride(table) = static_cast<int32_t>(shape.position_strides[static_cast<size_t>(table)]);
  stride(kOfHeads) = static_cast<int32_t>(shape.heads * shape.head_dim);
  stride(kOfKeyHeads) = static_cast<int32_t>(shape.kv_heads * shape.head_dim);
  stride(kOfLse) = static_cast<int32_t>(shape.heads);
  check_launch(launch_varlen_tables(launch, stream_of(a.q)), "varlen tables");
  auto scale = static_cast<float>(a.scale);
  tensors[kQ] = a.q.data_ptr();
  tensors[kK] = a.k.data_ptr();
  tensors[kV] = a.v.data_ptr();
  tensors[kScale] = &scale;
  tensors[kQueries] = tensors[kKeys] = launch.tables;
  for (int t = 0; t < kVarlenTensors; ++t) tensors[kTables + t] = launch.tables + (1 + t) * pitch;
  plans().start(plan, tensors, a.q);
}

// cuDNN sums dq in an fp32 workspace with the strides of dq but indexes it with the strides of q, so q must have the strides of dq. Copies
// 16 bytes at a time, which is twice as fast as element by element.
at::Tensor with_contiguous_heads(const at::Tensor& q) {
  constexpr auto kWide = at::kComplexDouble;
  const bool can_be_wide = q.storage_offset() * q.element_size() % kAligned == 0;
  return can_be_wide ? q.flatten(0, 1).view(kWide).contiguous().view(q.scalar_type()).view(q.sizes()) : q.contiguous();
}

}  // namespace

bool has_cudnn_varlen() { return true; }

std::optional<AttentionOutput> cudnn_varlen(const VarlenAttention& sequences) {
  const Shape shape(sequences, /*back=*/false);
  const Plan* const plan = plan_for(sequences, shape);
  if (plan == nullptr) return std::nullopt;
  const at::Tensor out = at::empty(sequences.q.sizes(), sequences.q.options()),
                   lse =
                       at::empty({sequences.q.size(0), sequences.q.size(1), sequences.q.size(2)}, sequences.q.options().dtype(at::kFloat));
  start(*plan, shape, sequences, {{kOut, out.data_ptr()}, {kLse, lse.data_ptr()}});
  return AttentionOutput{out, lse.transpose(1, 2)};
}

std::optional<AttentionGradients> cudnn_varlen_backward(const VarlenAttention& given, const at::Tensor& dout,
                                                        const AttentionOutput& attended) {
  Shape shape(given, /*back=*/true);
  shape.position_strides[kOfQ] = shape.heads * shape.head_dim, shape.head_strides[kOfQ] = shape.head_dim;
  const Plan* const plan = is_possible(dout) && is_possible(attended.out) ? plan_for(given, shape) : nullptr;
  if (plan == nullptr) return std::nullopt;
  VarlenAttention sequences = given;
  sequences.q = with_contiguous_heads(given.q);
  const auto room = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const AttentionGradients made{room(sequences.q), room(sequences.k), room(sequences.v)};
  const at::Tensor lse = attended.lse.transpose(1, 2).contiguous();  // as cuDNN wrote them
  start(*plan, shape, sequences,
        {{kOut, attended.out.data_ptr()},
         {kLse, lse.data_ptr()},
         {kDout, dout.data_ptr()},
         {kDq, made.q.data_ptr()},
         {kDk, made.k.data_ptr()},
         {kDv, made.v.data_ptr()}});
  return made;
}

}  // namespace cairn::kernels
