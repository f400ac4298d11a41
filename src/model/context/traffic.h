#pragma once
#include <cstdint>
#include <vector>

#include "model/context/attention.h"
#include "model/context/form.h"
#include "model/context/split.h"

namespace cairn::kernels {
struct AttentionOptions;
}

namespace cairn::model {

// One call of context attention as a graph: what each rank computes, what is sent, and what each of these waits for. Made from the same
// routes as the messages themselves, so its bytes are those that the ledger books. What context_bytes adds up and predict_context times.
struct ContextTask {
  int from = 0;               // the rank that computes, or sends
  int to = -1;                // the receiver; -1: this is computation
  int64_t bytes = 0;          // of a message
  double flops = 0;           // of a computation
  std::vector<size_t> after;  // tasks that end before this one begins: earlier ones in the list
  bool is_message() const { return to >= 0; }
};

// `queries`: where they are others than the keys (context_attention_over_cache).
std::vector<ContextTask> context_tasks(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                                       const ContextMethod& method, bool backward, const ContextSplit* queries = nullptr);

// Pairs of a query and a key that it may see by the causal mask and the window.
int64_t seen_pairs(const kernels::AttentionOptions& options, const ContextSplit& queries, int reader, const ContextSplit& keys, int owner);

}  // namespace cairn::model
