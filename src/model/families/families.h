#pragma once
#include <string>
#include <vector>

#include "model/decoder/norm.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// The names of a family's parameters, as Hugging Face has them. Those of a layer stand behind "<layers>.<number>.".
struct FamilyNames {
  std::string embedding, positions, layers, final_norm, head;  // positions empty: rotary ones
  std::string attention_norm;
  std::vector<std::string> qkv;  // three projections, or one that holds all three
  std::string out, mlp_norm;
  std::vector<std::string> up;  // gate and up (SwiGLU), or up alone (GELU)
  std::string down;
};

// Everything in which one family of decoders differs from another: a new one is a record in families.cpp and, where its config.json has
// words of its own, a few lines in config.cpp.
struct Family {
  std::string name;          // model_type of config.json, model.kind of a recipe
  std::string architecture;  // "LlamaForCausalLM"
  FamilyNames names;
  Norm::Kind norm = Norm::Kind::rms;
  bool qk_norm = false;                                       // each head of queries and keys is normed before it is rotated
  bool fan_in_fan_out = false;                                // projections are stored [in, out]
  bool qkv_bias = false, out_bias = false, mlp_bias = false;  // of a model that is started here

  bool rotary() const { return names.positions.empty(); }
  bool gated() const { return names.up.size() == 2; }
};

const std::vector<Family>& families();
// Throws bad_input with the nearest name for one that is not there.
const Family& family(const std::string& name);
std::vector<std::string> family_names();

}  // namespace cairn::model
