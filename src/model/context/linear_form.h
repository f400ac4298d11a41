#pragma once
#include <cstdint>

namespace cairn::model {

// How the ranks of a sequence hand on the states of linear attention. With S the bytes of a state and n ranks:
//   zeco   an all-scan in pipelined blocks while the rank computes what needs no state from outside (arXiv:2507.01004). A rank sends S.
//   lasp1  the ranks one after the other: each waits for its state, computes, sends its own (arXiv:2404.02882). A rank sends S.
//   lasp2  an all-gather of all states and decays, in the background too (arXiv:2502.07563). A rank sends (n - 1) S.
// All give the same results, up to the order of sums.
enum class LinearForm { zeco, lasp1, lasp2 };

// In what states and their gradients travel. Ranks keep them in fp32 either way. bf16 halves S, and rounds once for each rank that a state
// passes through.
enum class StateDtype { fp32, bf16 };

}  // namespace cairn::model
