#pragma once
#include <cstdint>
#include <vector>

namespace cairn::model {

class ExpertExchange;
class Fp8LinearLayers;
class RoutingObserver;
struct Subnet;

// memory.partition_activations: how ranks along tp keep the inputs of recomputed blocks.
//   automatic  as the residual stream lies between blocks, which sends nothing: in parts with sequence parallelism, whole where the wiring
//              replicates the stream (ladder, parallel)
//   on         each rank keeps its part (ZeRO-R's partitioned activations); a replicated value is gathered before recomputation
//   off        each rank keeps all of it; a value in parts is gathered in forward
enum class PartitionActivations { automatic, on, off };

// Mistakes that a test can plant, as data, to see that it finds them.
struct SliceMistakes {
  bool forget_later_slices = false;  // StreamBP: the gradients of a slice's keys lack what later slices have added
  bool operator==(const SliceMistakes&) const = default;
};

// In the place of a number of PassOptions::module: in training one that is drawn, otherwise all of them, merged; or all of them, added up.
inline constexpr int64_t kModulesByPass = -1, kModulesAddedUp = -2;

// How the passes of a run are computed: the same for every pass, decided once when the run is built. The trainer holds one by value; a
// pass and the calls of its blocks refer to it.
struct PassOptions {
  // Read by blocks.
  bool overlap = false;               // tensor.overlap: a linear layer multiplies some rows while the others are on the wire along tp
  bool overlap_residual_sums = true;  // tensor.overlap_residual_sums: a block may return while its all-reduce along tp is in flight
  int64_t loss_chunks = 1;            // chunked cross entropy: the logits of a pass with gradients are computed in this many chunks
  int64_t head_slice = 0;             // the same by size: at most so many tokens in a chunk; 0: no bound
  bool skip_unneeded_logits = false;  // chunks of rows without a target are not computed. On a GPU the host waits to learn which.
  int64_t slice = 0;                  // StreamBP: layers compute so many tokens of each sequence at a time; 0: whole sequences
  SliceMistakes slice_mistakes = {};
  bool single_stream = false;               // a model with parallel streams (ParScale) computes as one stream without prefix
  bool batch_statistics = false;            // batch normalisation uses the statistics of the batch in passes without gradients too
  int64_t module = kModulesByPass;          // adapters in modules (decoder/adapter_matrix.h): which one computes
  const Subnet* subnet = nullptr;           // supernets: the part of the model that passes compute; null: all of it. Borrowed.
  const Fp8LinearLayers* fp8 = nullptr;     // which linear layers multiply in fp8 in passes with gradients; null: none. Borrowed.
  const ExpertExchange* experts = nullptr;  // how rows reach the experts of other ranks (experts/exchange.h); null: all are here. Borrowed.
  RoutingObserver* routing = nullptr;       // sees which experts tokens choose (experts/routing_observer.h); null: nobody does. Borrowed.

  // Read by the executor of a pass.
  bool draws_by_token = false;       // blocks draw random numbers by sample and position (dropout)
  std::vector<bool> recompute = {};  // by block: activations are recomputed in the backward pass; empty: none
  bool offload_inputs = false;       // the inputs of recomputed blocks wait in host memory
  bool recompute_stage = false;      // a whole pipeline stage is recomputed at once
  bool recompute_last = true;        // the last micro-batch of a step is recomputed too
  bool recompute_all_ahead = false;  // a recompute action (parallel/schedule.h) recomputes all blocks of its stage; else the last one
  PartitionActivations partition_activations = PartitionActivations::automatic;
  bool scatter_boundaries = true;  // each rank along tp sends its part of what goes between pipeline stages; else all of it
  int prefetch_blocks = 1;         // so many blocks ahead of their use, sharded weights are gathered (ZeRO 3)
};

// For calls outside of a run: decoding, evaluation, tests.
inline const PassOptions kDefaultPassOptions{};

}  // namespace cairn::model
