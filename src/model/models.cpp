// The list of models. A new one is a file beside this and one line here.
#include "base/check.h"
#include "base/nearest.h"
#include "model/classifier.h"
#include "model/llama.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/options.h"

namespace cairn::model {
namespace {

Task llama(const ModelOptions& o, const Inputs& inputs) {
  if (inputs.vocab == 0)
    base::fail_input("model.kind = \"llama\" reads tokens, and the data have none: choose data of text, or model.kind = \"classifier\"");
  if (o.heads % o.kv_heads != 0) base::fail_input("model.heads = {} must be a multiple of model.kv_heads = {}", o.heads, o.kv_heads);
  if (o.head_dim == 0 && o.embed % o.heads != 0)
    base::fail_input("model.embed = {} must be a multiple of model.heads = {}, or set model.head_dim", o.embed, o.heads);
  const int64_t head_dim = o.head_dim ? o.head_dim : o.embed / o.heads;
  if (head_dim % 2 != 0)
    base::fail_input("model.head_dim = {}: rotary positions need an even width; choose embed = heads x an even number", head_dim);
  return {make_llama({.vocab = inputs.vocab,
                      .embed = o.embed,
                      .layers = o.layers,
                      .heads = o.heads,
                      .kv_heads = o.kv_heads,
                      .head_dim = head_dim,
                      .mlp = o.mlp,
                      .length = inputs.length,
                      .tied = o.tied,
                      .rope_theta = o.rope_theta,
                      .norm_eps = o.norm_eps}),
          make_next_token()};
}

Task classifier(const ModelOptions& o, const Inputs& inputs) {
  if (inputs.classes == 0)
    base::fail_input(
        "model.kind = \"classifier\" needs data with labels: set data.kind = \"spirals\", or choose model.kind = \"llama\" for text");
  return {make_classifier({.features = inputs.features, .classes = inputs.classes, .hidden = o.embed, .layers = o.layers}),
          make_classification()};
}

struct Entry {
  std::string name;
  Task (*make)(const ModelOptions&, const Inputs&);
};

const std::vector<Entry>& models() {
  static const std::vector<Entry> list{{"llama", llama}, {"classifier", classifier}};
  return list;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : models()) names.push_back(entry.name);
  return names;
}

Task make_task(const ModelOptions& options, const Inputs& inputs) {
  for (const Entry& entry : models())
    if (entry.name == options.kind) return entry.make(options, inputs);
  base::fail_unknown("model", options.kind, model_names());
}

}  // namespace cairn::model
