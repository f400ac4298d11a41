#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/block_pattern.h"
#include "model/decoder/linear_attention_shape.h"
#include "model/decoder/stream_shape.h"
#include "model/experts/shape.h"
#include "model/vision/patch_input.h"

namespace cairn::model {

// Rope scaling: how rotary angles are stretched for sequences longer than the model was trained on. Names as in config.json.
struct RopeScaling {
  enum class Kind { none, linear, dynamic, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  int64_t original_length = 0;                       // llama3, yarn: the length before scaling; 0: max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;                       // yarn; 0: from the factor (and the two below, where given)
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  bool operator==(const RopeScaling&) const = default;
};

// Special token ids of config.json.
struct SpecialTokens {
  std::optional<int64_t> bos = {}, pad = {};
  std::vector<int64_t> eos = {};  // each of them ends a text
  bool operator==(const SpecialTokens&) const = default;
};

// The hyperparameters of a decoder. What is fixed for a family is in families/families.h.
struct DecoderShape {
  int64_t vocab = 1024;
  int64_t embed = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 32;
  int64_t mlp = 352;
  int64_t length = 128;  // longest sequence the model is made for (max_position_embeddings)
  bool tied = true;      // the head is the embedding table
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  std::string family = "llama";
  int64_t window = 0;  // a query sees this many positions, itself included; 0: all before it
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  std::optional<kernels::BlockPattern> pattern = {};  // S2-Attention (decoder/attention_pattern.h), in all layers but
  std::vector<int64_t> dense_layers = {};             // these, ascending
  StreamShape streams = {};                           // ParScale
  RopeScaling rope_scaling = {};
  int64_t table_length = 0;  // length of the rotation tables, where sequences are shorter than `length`; 0: length
  SpecialTokens tokens = {};
  double dropout = 0;                       // dropout of what is added to the residual stream, in training
  std::string residual = "standard";        // one of kWirings (decoder/wiring.h)
  std::vector<int64_t> ladder_layers = {};  // ladder wiring: which layers, ascending
  bool elastic_layers = false;              // subnets may leave out layers (supernet/)
  PatchInput pictures = {};                 // of families that read pictures; `vocab` above counts their classes
  ExpertShape experts = {};                 // of families with experts; `mlp` above is the width of layers without
  LinearAttentionShape linear = {};         // of families with linear attention; heads and head_dim above are those of softmax layers
  // Fields of the config.json it was read from that nothing here interprets, as JSON: they are written back.
  std::vector<std::pair<std::string, std::string>> other_fields = {};
  bool operator==(const DecoderShape&) const = default;
};

}  // namespace cairn::model
