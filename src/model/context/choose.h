#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/context/traffic.h"

namespace cairn::model {

// The links among the ranks along cp, and how fast a rank computes, as prediction sees them.
struct ContextLinks {
  double latency_s = 20e-6;
  double bytes_per_s = 10e9;                                 // one direction of a pair, or of a rank's card
  std::vector<std::vector<double>> bytes_per_s_matrix = {};  // [from][to], replaces bytes_per_s; empty: all pairs are equal
  std::vector<std::vector<double>> latency_s_matrix = {};    // [from][to], replaces latency_s
  bool shared_card = false;  // the links of a rank share its card, in and out separately; else every pair has its own
  double flops_per_s = 0;    // of attention on one rank; 0: computation takes no time
  std::string origin = {};   // "measured", "assumed": for the reason that choose_context gives
};

// The seconds of one forward and one backward call. Messages queue on their links or cards; a rank computes one block after the other.
struct ContextSeconds {
  double forward = 0;
  double backward = 0;
  double total() const { return forward + backward; }
};
ContextSeconds predict_context(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                               const ContextMethod& method, const ContextLinks& links, const ContextSplit* queries = nullptr);

// What `context.form = "auto"` weighs, best first; ties go to the form named first in ContextForm.
struct ContextChoice {
  ContextMethod method;
  ContextSeconds seconds;
  int64_t bytes = 0;  // that all ranks send, forward and backward
};
struct ContextChoices {
  std::vector<ContextChoice> all;
  // "ring: 12.1 ms a layer, 8.4 MB; links per pair. token_ring 14.0 ms, gather 15.2 ms, ulysses: 3 heads cannot be divided over 2 ranks"
  std::string why;
  const ContextMethod& best() const { return all.front().method; }
};
// All forms and products that work with so many heads (`sizes.heads`, of one rank along tp). `queries`: of a call over a cache of keys
// (context_attention_over_cache), which is forward only.
ContextChoices choose_context(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                              const ContextLinks& links, const ContextSplit* queries = nullptr);

}  // namespace cairn::model
