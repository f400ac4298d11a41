#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/placement.h"

namespace cairn::model {

// One parameter: its Hugging Face name, shape, logical axes and role. It holds no values.
struct Parameter {
  enum class Role { embedding, weight, norm, bias, head, adapter };
  enum class Init { normal, ones, zeros, constant };

  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  std::vector<std::string> axes = {};  // logical axis per dim: vocab, embed, heads, kv_heads, qkv (queries, keys, values stacked), mlp, ...
  Role role = Role::weight;
  Init init = Init::normal;
  double deviation = 0.02;         // standard deviation of Init::normal; the value of Init::constant
  mesh::Placement placement = {};  // set by the plan
  int32_t uses = 1;                // contributions to its gradient in one pass
  int64_t head_width = 1;          // indices per head, along an axis of heads
  int64_t queries_per_key = 1;     // query heads per key head, along an axis of heads
  std::vector<int64_t> sections = {};  // of an axis that tp splits by rows: each section is split evenly; empty: it is one section
  bool of_many_layers = false;     // read by the blocks of many layers: ZeRO 3 gathers it once a step
  bool is_trainable = true;        // false: only the method that made it changes it; model.train never chooses it
  std::optional<bool> decay = {};  // whether weight decay applies; empty: as for its shape
  bool on_hyperboloid = false;     // its rows are points of hyperbolic space (hyperbolic/lorentz.h)
  bool fan_in_fan_out = false;     // a linear layer's weight that is stored [in, out] instead of [out, in]
  // Of adapters in modules (decoder/adapter_matrix.h): what this is a module of, which one, and how many there are.
  std::string module_of = {};
  int64_t module = 0, modules = 1;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    return n;
  }
  // A matrix from hidden states to hidden states: no embedding table, head, gain, bias or adapter.
  bool is_hidden_matrix() const { return role == Role::weight && shape.size() == 2; }
  // Weight decay applies to matrices, not to gains and biases, unless the parameter says otherwise.
  bool decays() const { return decay.value_or(shape.size() >= 2); }
};

}  // namespace cairn::model
