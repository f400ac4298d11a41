// `cairn bench kernels`: what the kernels of a training step make of a GPU's memory, against the plain operations they stand for, in bf16.
// GB/s counts the bytes that an operation must move at least, for both; attention and products count TFLOP/s instead. By the GPU's own
// clock, after a warm-up, in turn, over sets of tensors of which two together are larger than its cache.
#include "bench/kernels.h"

#include <iterator>
#include <utility>

#include <ATen/core/IListRef.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "base/log.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/device.h"
#include "kernels/embedding.h"
#include "kernels/fused_gemm.h"
#include "kernels/gemm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "study/benches.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 5, kTimes = 6;
// A model of 1.2 billion parameters on 6 texts of 4,096 tokens.
constexpr int64_t kBatch = 6, kLength = 4096, kRows = kBatch * kLength, kEmbed = 2048, kMlp = 8192, kHeads = 32, kKeyHeads = 8,
                  kHeadDim = 64, kVocab = 128256;

// Seconds of one call, by events on the stream.
double seconds_of(const std::function<void(int)>& call) {
  const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  for (int i = 0; i < kTimes; ++i) call(i % Sets::kSets);
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end) * 1e-3 / kTimes;
}

void add_row(std::vector<BenchRow>& rows, const KernelCase& operation, const char* unit, double in_unit, const BenchOptions& options,
             base::Log& log) {
  if (!options.only.empty() && options.only != operation.name) return;
  std::vector<double> fast, plain;
  for (int round = -1; round < kRounds; ++round) {
    const double times[] = {seconds_of(operation.fast), seconds_of(operation.plain)};
    if (round < 0) continue;
    fast.push_back(operation.work / in_unit / times[0]);
    plain.push_back(operation.work / in_unit / times[1]);
  }
  rows.push_back(compare(operation.name, fast, plain, unit, Better::higher, 1));
  log.info("{}: {:.0f} MB or Mflop, {:.3f} ms", operation.name, operation.work * 1e-6, operation.work / in_unit / rows.back().ours * 1e3);
}

constexpr double kX = 2.0 * kRows * kEmbed, kUp = 2.0 * kRows * kMlp;  // bytes of a hidden state, and of half a gated one

void norms(const Measure& measure) {
  const Sets x({kRows, kEmbed}), dy({kRows, kEmbed}), add({kRows, kEmbed}), weight(std::vector<int64_t>{kEmbed}), y({kRows, kEmbed}),
      sum({kRows, kEmbed});
  const at::Tensor rstd = at::ones({kRows}, on_gpu(at::kFloat)), dw = at::zeros({kEmbed}, on_gpu(at::kFloat));
  measure({"rms_norm", 2 * kX, [&](int i) { kernels::rms_norm(y[i], rstd, x[i], weight[i], 1e-5); },
           [&](int i) { kernels::reference::rms_norm(y[i], rstd, x[i], weight[i], 1e-5); }});
  measure({"add_rms_norm", 4 * kX, [&](int i) { kernels::add_rms_norm(y[i], rstd, sum[i], x[i], add[i], weight[i], 1e-5); },
           [&](int i) { kernels::reference::add_rms_norm(y[i], rstd, sum[i], x[i], add[i], weight[i], 1e-5); }});
  measure({"rms_norm_backward_input", 4 * kX, [&](int i) { kernels::rms_norm_backward_input(y[i], dy[i], x[i], weight[i], rstd, &add[i]); },
           [&](int i) { kernels::reference::rms_norm_backward_input(y[i], dy[i], x[i], weight[i], rstd, &add[i]); }});
  measure({"rms_norm_backward_weight", 2 * kX, [&](int i) { kernels::rms_norm_backward_weight(dw, dy[i], x[i], rstd); },
           [&](int i) { kernels::reference::rms_norm_backward_weight(dw, dy[i], x[i], rstd); }});
}

void gates(const Measure& measure) {
  const Sets gate_up({kRows, 2 * kMlp}), dgate_up({kRows, 2 * kMlp}), dy({kRows, kMlp}), y({kRows, kMlp});
  measure(
      {"swiglu", 3 * kUp, [&](int i) { kernels::swiglu(y[i], gate_up[i]); }, [&](int i) { kernels::reference::swiglu(y[i], gate_up[i]); }});
  measure({"swiglu_backward", 6 * kUp, [&](int i) { kernels::swiglu_backward(dgate_up[i], dy[i], gate_up[i], &y[i]); },
           [&](int i) { kernels::reference::swiglu_backward(dgate_up[i], dy[i], gate_up[i], &y[i]); }});
}

void heads(const Measure& turn, const Measure& attend) {
  const Sets qkv({kBatch, kLength, kHeads + 2 * kKeyHeads, kHeadDim}), dqkv({kBatch, kLength, kHeads + 2 * kKeyHeads, kHeadDim}),
      out({kBatch, kLength, kHeads, kHeadDim}), dout({kBatch, kLength, kHeads, kHeadDim});
  const kernels::RopeTable table = kernels::rope_table(kLength, kHeadDim, 5e5, on_gpu(at::kFloat));
  const auto both = [&](int i) { return qkv[i].narrow(2, 0, kHeads + kKeyHeads); };
  turn({"rope", 2.0 * 2 * kRows * (kHeads + kKeyHeads) * kHeadDim, [&](int i) { kernels::rope(both(i), table); },
        [&](int i) { kernels::reference::rope(both(i), table); }});
  const Sets dq({kBatch, kLength, kHeads, kHeadDim}), dk({kBatch, kLength, kKeyHeads, kHeadDim}),
      dv({kBatch, kLength, kKeyHeads, kHeadDim});
  turn({"rope_backward", 2.0 * 2 * kRows * (kHeads + 2 * kKeyHeads) * kHeadDim,
        [&](int i) {
          kernels::rope_backward(dqkv[i], {dq[i], dk[i], dv[i]}, table);
        },
        [&](int i) {
          at::Tensor all = dqkv[i];
          at::cat_out(all, {dq[i], dk[i], dv[i]}, 2);
          kernels::reference::rope(dqkv[i].narrow(2, 0, kHeads + kKeyHeads), table, 0, /*inverse=*/true);
        }});
  const at::Tensor lse = at::empty({kBatch, kHeads, kLength}, on_gpu(at::kFloat));
  const auto part = [](const at::Tensor& all, int64_t first, int64_t count) { return all.narrow(2, first, count); };
  kernels::AttentionOptions options;
  const auto forward = [&](int i, auto attention) {
    attention(out[i], lse, part(qkv[i], 0, kHeads), part(qkv[i], kHeads, kKeyHeads), part(qkv[i], kHeads + kKeyHeads, kKeyHeads), options);
  };
  const auto backward = [&](int i, auto attention_backward) {
    attention_backward(part(dqkv[i], 0, kHeads), part(dqkv[i], kHeads, kKeyHeads), part(dqkv[i], kHeads + kKeyHeads, kKeyHeads), dout[i],
                       part(qkv[i], 0, kHeads), part(qkv[i], kHeads, kKeyHeads), part(qkv[i], kHeads + kKeyHeads, kKeyHeads), out[i], lse,
                       options);
  };
  const double flops = 2.0 * kBatch * kLength * kLength * kHeads * kHeadDim;  // two products of half a square each
  attend({"attention", flops, [&](int i) { forward(i, kernels::attention); }, [&](int i) { forward(i, kernels::reference::attention); }});
  attend({"attention_backward", 2.5 * flops, [&](int i) { backward(i, kernels::attention_backward); },
          [&](int i) { backward(i, kernels::reference::attention_backward); }});
  // Each row four documents that do not see each other.
  const std::vector<int64_t> lengths{2048, 1024, 768, 256};
  std::vector<at::Tensor> ids, starts;
  double seen = 0;  // of all pairs
  for (int64_t begin = 0; const int64_t length : lengths) {
    ids.push_back(at::full({length}, std::ssize(ids), on_gpu(at::kLong)));
    starts.push_back(at::full({1}, std::exchange(begin, begin + length), on_gpu(at::kInt)));
    seen += static_cast<double>(length * length) / (kLength * kLength);
  }
  const at::Tensor documents = at::cat(ids).expand({kBatch, kLength}).contiguous(),
                   table_of_starts = at::cat(starts).expand({kBatch, -1}).contiguous();
  options = {.query_documents = &documents, .key_documents = &documents, .document_starts = &table_of_starts};
  attend({"variable-length attention", seen * flops, [&](int i) { forward(i, kernels::attention); },
          [&](int i) { forward(i, kernels::reference::attention); }});
  attend({"attention_backward of documents", 2.5 * seen * flops, [&](int i) { backward(i, kernels::attention_backward); },
          [&](int i) { backward(i, kernels::reference::attention_backward); }});
}

// Against the same in a row: the product by cuBLASLt, then the kernel that comes after it.
void products_that_go_on(const Measure& measure) {
  const Sets x({kRows, kEmbed}), w({2 * kMlp, kEmbed}, at::kBFloat16, 0.02), down({kEmbed, kMlp}, at::kBFloat16, 0.02), y({kRows, kMlp}),
      gate_up({kRows, 2 * kMlp});
  const double flops = 2.0 * kRows * kEmbed * kMlp;
  measure({"linear_swiglu", 2 * flops, [&](int i) { kernels::linear_swiglu(gate_up[i], y[i], x[i], w[i]); },
           [&](int i) {
             kernels::linear(gate_up[i], x[i], w[i]);
             kernels::swiglu(y[i], gate_up[i]);
           }});
  measure({"linear_swiglu_backward", flops, [&](int i) { kernels::linear_swiglu_backward(gate_up[i], y[i], x[i], down[i], gate_up[i]); },
           [&](int i) {
             kernels::linear_backward_input(y[i], x[i], down[i]);
             kernels::swiglu_backward(gate_up[i], y[i], gate_up[i], &y[i]);
           }});
  constexpr int64_t kAll = kHeads + 2 * kKeyHeads;
  const Sets qkv({kRows, kAll * kHeadDim}), project({kAll * kHeadDim, kEmbed}, at::kBFloat16, 0.02);
  const kernels::RopeTable table = kernels::rope_table(kLength, kHeadDim, 5e5, on_gpu(at::kFloat));
  const kernels::RotatedHeads turned{.table = table, .heads = kHeads + kKeyHeads, .length = kLength};
  measure({"linear_rope", 2.0 * kRows * kEmbed * kAll * kHeadDim, [&](int i) { kernels::linear_rope(qkv[i], x[i], project[i], turned); },
           [&](int i) {
             kernels::linear(qkv[i], x[i], project[i]);
             kernels::rope(qkv[i].view({kBatch, kLength, kAll, kHeadDim}).narrow(2, 0, turned.heads), table);
           }});
}

void losses(const Measure& measure) {
  constexpr int64_t kSome = kRows / 4;  // of the rows: three sets of all would take 19 GB
  const Sets logits({kSome, kVocab});
  const at::Tensor targets = at::randint(0, kVocab, {kSome}, on_gpu(at::kLong)), loss = at::empty({kSome}, on_gpu(at::kFloat)),
                   lse = at::zeros({kSome}, on_gpu(at::kFloat)), scale = at::full({1}, 1.0, on_gpu(at::kFloat));
  const double bytes = 2.0 * kSome * kVocab;
  measure({"cross_entropy", bytes, [&](int i) { kernels::cross_entropy(loss, lse, logits[i], targets); },
           [&](int i) { kernels::reference::cross_entropy(loss, lse, logits[i], targets); }});
  measure({"cross_entropy_and_gradient", 2 * bytes,
           [&](int i) { kernels::cross_entropy_and_gradient(loss, lse, logits[i], targets, scale); },
           [&](int i) {
             kernels::reference::cross_entropy(loss, lse, logits[i], targets);
             kernels::reference::cross_entropy_backward(logits[i], lse, targets, scale);
           }});
}

void tables(const Measure& measure) {
  const Sets dy({kRows, kEmbed}), y({kRows, kEmbed}), table({kVocab, kEmbed});
  const at::Tensor dtable = at::zeros({kVocab, kEmbed}, on_gpu(at::kFloat));
  // As in texts, some ids come often: half of them are among the first 256.
  const at::Tensor ids = at::randint(0, kVocab, {kRows}, on_gpu(at::kLong));
  ids.narrow(0, 0, kRows / 2).remainder_(256);
  measure({"embedding", 2 * kX, [&](int i) { kernels::embedding(y[i], table[i], ids); },
           [&](int i) { kernels::reference::embedding(y[i], table[i], ids); }});
  measure(
      {"embedding_backward", 3 * kX,
       [&](int i) { kernels::embedding_backward(dtable, ids, dy[i]); },  // and as many rows of the table as half of them, read and written
       [&](int i) { kernels::reference::embedding_backward(dtable, ids, dy[i]); }});
}

}  // namespace

std::vector<BenchRow> bench_kernels(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  if (!kernels::can_use_cuda()) {
    log.info("no GPU here: nothing is measured");
    return rows;
  }
  const auto bytes = [&](const KernelCase& operation) { add_row(rows, operation, "GB/s", 1e9, options, log); };
  const auto products = [&](const KernelCase& operation) { add_row(rows, operation, "TFLOP/s", 1e12, options, log); };
  norms(bytes);
  gates(bytes);
  heads(bytes, products);
  products_that_go_on(products);
  losses(bytes);
  tables(bytes);
  measure_updates(bytes, products);
  measure_codes(bytes, products);
  measure_noise(bytes);
  return rows;
}

}  // namespace cairn::study
