#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn::model {

// How rotary angles are stretched for longer sequences than a model was first trained on; the words are those of config.json.
struct RopeScaling {
  enum class Kind { none, linear, dynamic, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  int64_t original_length = 0;                       // llama3, yarn: the length before stretching; 0: max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;                       // yarn; 0: from the factor (and the two below, where given)
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  bool operator==(const RopeScaling&) const = default;
};

// Ids with a meaning, as config.json has them.
struct SpecialTokens {
  std::optional<int64_t> bos = {}, pad = {};
  std::vector<int64_t> eos = {};  // any of them ends a text
  bool operator==(const SpecialTokens&) const = default;
};

// The shape of a decoder of one of the families (families.h). What a family never varies is said there.
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
  RopeScaling rope_scaling = {};
  int64_t table_length = 0;  // rotation tables are this long, where no longer sequences will come; 0: length
  SpecialTokens tokens = {};
  double dropout = 0;                       // of what is added to the residual stream, in training
  std::string residual = "standard";        // one of kWirings (decoder/wiring.h)
  std::vector<int64_t> ladder_layers = {};  // of the ladder: which, in order
  bool operator==(const DecoderShape&) const = default;
};

}  // namespace cairn::model
