#include "proofs/hand_plans.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "planner/graph/described_models.h"

namespace cairn::study {

using namespace planner;

ByName by_name(const std::string& name) {
  const auto has = [&](std::initializer_list<const char*> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const char* part) { return name.find(part) != std::string::npos; });
  };
  if (has({"relative_attention_bias"})) return ByName::columns;
  if (has({"norm", "ln_", "position", "wpe", "patch_embeddings"})) return ByName::whole;
  if (has({"embed_tokens", "wte.", "shared.weight", "lm_head", "classifier"})) return ByName::rows;
  if (has({".q_proj", ".k_proj",      ".v_proj",      ".c_attn",      ".gate_proj", ".up_proj", ".c_fc",   ".fc1",
           ".wi",     "Attention.q.", "Attention.k.", "Attention.v.", ".query.",    ".key.",    ".value.", ".intermediate.dense",
           ".to_q.",  ".to_k.",       ".to_v.",       ".ff.net.0."}))
    return ByName::out;
  if (has({".o_proj", ".out_proj", ".c_proj", ".down_proj", ".fc2", ".wo.", "Attention.o.", ".output.dense", ".to_out.", ".ff.net.2."}))
    return ByName::in;
  return ByName::whole;
}

namespace {

// The signature that shares out this dim of the operation's output; none where there is no such.
std::optional<SbpSignature> sharing_output(const std::vector<SbpSignature>& all, int dim) {
  for (const SbpSignature& one : all)
    if (one.output == split_of(dim)) return one;
  return std::nullopt;
}
std::optional<SbpSignature> taking(const std::vector<SbpSignature>& all, size_t input, Sbp sbp) {
  for (const SbpSignature& one : all)
    if (one.inputs.size() > input && one.inputs[input] == sbp) return one;
  return std::nullopt;
}

class ByHand {
 public:
  ByHand(const OpGraph& graph, Boxing& boxing, const HandPlan& plan) : graph_(graph), boxing_(boxing), plan_(plan) {}

  PlacedGraph place() {
    const mesh::Mesh& mesh = boxing_.mesh();
    PlacedGraph placed{.mesh = mesh,
                       .graph = graph_,
                       .tensors = std::vector<NdSbp>(graph_.tensors.size(), NdSbp(mesh.axes.size())),
                       .gradients = std::vector<NdSbp>(graph_.tensors.size()),
                       .needs = {}};
    for (const GraphOp& op : graph_.ops) placed.needs.emplace_back(op.inputs.size(), NdSbp(mesh.axes.size()));
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) along(axis, placed);
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (!is_parameter(graph_.tensors[t])) continue;
      if (plan_.sharded) share(graph_.tensors[t], placed.tensors[t]);
      placed.gradients[t] = placed.tensors[t];
    }
    add_moves(placed, boxing_);
    return placed;
  }

 private:
  const GraphTensor& tensor(int place) const { return graph_.tensors[static_cast<size_t>(place)]; }
  static bool is_parameter(const GraphTensor& t) { return t.kind == GraphTensor::Kind::parameter; }

  // Along every axis that it lies whole along and that shares samples out: by the first dim that can be cut.
  void share(const GraphTensor& parameter, NdSbp& nd_sbp) const {
    for (size_t axis = 0; axis < nd_sbp.size(); ++axis) {
      if (nd_sbp[axis] != kReplicate || (boxing_.mesh().axes[axis].name == "tp" && plan_.tensor != HandTensor::samples)) continue;
      for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
        nd_sbp[axis] = split_of(static_cast<int>(dim));
        if (fits(parameter, nd_sbp, boxing_.mesh())) break;
        nd_sbp[axis] = kReplicate;
      }
    }
  }

  void along(size_t axis, PlacedGraph& placed) const {
    const mesh::Axis& on = boxing_.mesh().axes[axis];
    const bool tp = on.name == "tp" && plan_.tensor != HandTensor::samples;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const GraphTensor& one = graph_.tensors[t];
      if (one.kind == GraphTensor::Kind::input && one.of_samples && !tp && !one.shape.empty() && one.shape[0] >= on.size)
        placed.tensors[t][axis] = split_of(0);
    }
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      const GraphOp& op = graph_.ops[o];
      const std::vector<SbpSignature> all = signatures(graph_, op, on.size);
      const SbpSignature chosen = tp ? for_tensors(op, all, axis, placed) : for_samples(op, all);
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        placed.needs[o][i][axis] = chosen.inputs[i];
        if (const auto t = static_cast<size_t>(op.inputs[i]);
            is_parameter(graph_.tensors[t]) && tp && chosen.inputs[i].kind == Sbp::Kind::split)
          placed.tensors[t][axis] = chosen.inputs[i];
      }
      placed.tensors[static_cast<size_t>(op.output)][axis] = chosen.output;
    }
  }

  SbpSignature for_samples(const GraphOp& op, const std::vector<SbpSignature>& all) const {
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (!is_parameter(tensor(op.inputs[i])))
        if (const auto found = taking(all, i, split_of(0))) return *found;
    return all.back();
  }

  SbpSignature for_tensors(const GraphOp& op, const std::vector<SbpSignature>& all, size_t axis, const PlacedGraph& placed) const {
    const auto lies = [&](size_t i) { return placed.tensors[static_cast<size_t>(op.inputs[i])][axis]; };
    const auto stream = [&] {
      const auto shared = plan_.tensor == HandTensor::shared_tokens ? sharing_output(all, 1) : std::nullopt;
      return shared ? *shared : all.back();
    };
    const int last = static_cast<int>(tensor(op.output).shape.size()) - 1;
    const bool inside = !op.inputs.empty() && lies(0) == split_of(static_cast<int>(tensor(op.inputs[0]).shape.size()) - 1) && last > 0;
    switch (op.kind) {
      case GraphOp::Kind::product: {
        const ByName how = by_name(tensor(op.inputs[1]).name);
        if (how == ByName::out || how == ByName::rows)
          if (const auto found = sharing_output(all, last)) return *found;
        if (how == ByName::in)
          if (const auto found = taking(all, 0, split_of(static_cast<int>(tensor(op.inputs[0]).shape.size()) - 1))) return *found;
        return stream();
      }
      case GraphOp::Kind::lookup:
        if (by_name(tensor(op.inputs[0]).name) == ByName::rows)
          if (const auto found = taking(all, 0, split_of(0))) return *found;
        return stream();
      case GraphOp::Kind::cross_entropy:
      case GraphOp::Kind::mean:
        if (const auto found = taking(all, 0, lies(0))) return *found;
        return all.back();
      case GraphOp::Kind::add:
        return stream();
      default:
        if (inside)
          if (const auto found = sharing_output(all, last)) return *found;
        return stream();
    }
  }

  const OpGraph& graph_;
  Boxing& boxing_;
  const HandPlan& plan_;
};

OpGraph decoder(const std::string& family, int64_t embed, int64_t heads, int64_t keys, int64_t mlp, int64_t vocab, bool tied, bool biases) {
  model::DecoderShape shape{.vocab = vocab,
                            .embed = embed,
                            .layers = 4,
                            .heads = heads,
                            .kv_heads = keys,
                            .head_dim = embed / heads,
                            .mlp = mlp,
                            .length = 1024,
                            .tied = tied,
                            .family = family};
  shape.qkv_bias = biases || family == "qwen2";
  shape.out_bias = shape.mlp_bias = biases;
  return graph_of(describe(*model::make_decoder(shape)), {.batch = 8, .length = 1024});
}

}  // namespace

std::vector<PlannedFamily> planned_families() {
  const PassShape pass{.batch = 8, .length = 512};
  return {{"llama", decoder("llama", 1024, 16, 4, 2816, 32000, false, false)},
          {"qwen2", decoder("qwen2", 896, 14, 2, 4864, 151936, true, false)},
          {"gpt2", decoder("gpt2", 768, 12, 12, 3072, 50257, true, true)},
          {"t5", graph_of(t5({.vocab = 32128, .embed = 512, .layers = 4, .heads = 8, .head_dim = 64, .mlp = 1024, .buckets = 32}), pass)},
          {"opt", graph_of(opt({.vocab = 50272, .embed = 768, .layers = 4, .heads = 12, .mlp = 3072, .length = 512}), pass)},
          {"vit", graph_of(vit({.patch = 16, .patches = 196, .embed = 768, .layers = 4, .heads = 12, .mlp = 3072, .classes = 1000}),
                           {.batch = 64, .length = 197})},
          {"unet", graph_of(unet_block({.channels = 320, .time = 1280, .heads = 8, .text = 768}),
                            {.batch = 8, .length = 4096, .other_length = 77})}};
}

const std::vector<std::string>& planned_meshes() {
  static const std::vector<std::string> meshes{"dp=4", "tp=2", "tp=4", "dp=2,tp=2", "dp=4,tp=2", "dp=2,tp=4"};
  return meshes;
}

const std::vector<HandPlan>& hand_plans() {
  static const std::vector<HandPlan> plans{{"Megatron", HandTensor::whole_stream},
                                           {"Megatron, tokens sharded", HandTensor::shared_tokens},
                                           {"Megatron, tokens sharded, FSDP", HandTensor::shared_tokens, true},
                                           {"samples along every axis", HandTensor::samples},
                                           {"samples along every axis, FSDP", HandTensor::samples, true}};
  return plans;
}

PlacedGraph place_by_hand(const OpGraph& graph, Boxing& boxing, const HandPlan& plan) { return ByHand(graph, boxing, plan).place(); }

}  // namespace cairn::study
