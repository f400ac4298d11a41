#include "model/options.h"

#include "model/decoder/wiring.h"

namespace cairn::model {

base::Schema<ModelOptions> model_schema() {
  using O = ModelOptions;
  return {
      "model",
      "The shape of the model; its vocabulary comes from the tokenizer.",
      {{"kind", &O::kind, "Kind of model.", base::one_of(model_names())},
       {"from", &O::from,
        "A Hugging Face directory, a run or a snapshot to start from. Its config.json sets all other keys here. Empty: a new model.",
        base::may_change(base::path())},
       {"train", &O::train,
        "Parameters to train: names with * for anything (\"*.mlp.*\"), or roles (\"role:norm\"). Empty: the adapters, or all where there "
        "are none.",
        base::may_change()},
       {"layers", &O::layers, "Decoder layers (hidden layers of a classifier).", base::between(1, 10000), {"num_hidden_layers"}},
       {"embed", &O::embed, "Width of the hidden states.", base::between(1, 1 << 20), {"hidden_size"}},
       {"heads", &O::heads, "Attention heads.", base::between(1, 65536), {"num_attention_heads"}},
       {"kv_heads",
        &O::kv_heads,
        "Key and value heads (grouped-query attention); each serves heads / kv_heads query heads.",
        base::between(1, 65536),
        {"num_key_value_heads"}},
       {"head_dim", &O::head_dim, "Width of a head; 0: embed / heads.", base::between(0, 65536)},
       {"mlp", &O::mlp, "Hidden width of the MLP.", base::between(1, 1 << 22), {"intermediate_size"}},
       {"tied", &O::tied, "Whether the output head is the embedding table.", base::any(), {"tie_word_embeddings"}},
       {"rope_theta", &O::rope_theta, "Base of the rotary angles.", base::may_change(base::more_than(1))},
       {"norm_eps", &O::norm_eps, "Added under the square root of norms.", base::may_change(base::more_than(0)), {"rms_norm_eps"}},
       {"dropout",
        &O::dropout,
        "Dropout rate of what the embedding and each branch add to the residual stream, in training.",
        base::may_change(base::between(0, 0.9)),
        {"resid_pdrop"}},
       {"residual", &O::residual,
        "Wiring of the residual stream. ladder: attention and MLP read the stream without the branch before, so its tensor-parallel "
        "all-reduce overlaps with theirs. parallel: attention and MLP of a layer read the same stream and share one all-reduce.",
        base::one_of(kWirings)},
       {"ladder_layers", &O::ladder_layers, "Layers with the ladder wiring: \"all\", \"last 8\", or numbers from 0 on: \"0,2,5\"."},
       {"decay", &O::decay,
        "How states of linear attention decay: gated (each key dim of each token has its own), constant (one per head, RetNet) or none.",
        kDecayNames},
       {"expand_k", &O::expand_k, "Linear attention: width of all keys together, as a multiple of embed.", base::more_than(0)},
       {"expand_v", &O::expand_v, "Linear attention: width of all values together, as a multiple of embed.", base::more_than(0)},
       {"chunk", &O::chunk, "Linear attention: tokens that are computed together. A power of two; it does not change results.",
        base::may_change(base::between(16, 256))},
       {"softmax_layers", &O::softmax_layers,
        "Hybrid models: layers of a gla model that have softmax attention: \"last 0\" (none), \"last 2\", or numbers from 0 on."},
       {"convert", &O::convert,
        "Allows weights of a model with another wiring. The model computes another function at first and has to be trained.",
        base::may_change()},
       {"hidden", &O::hidden, "Widths of the hidden layers of a classifier, in place of `layers` and `embed`.", base::between(1, 1 << 20)},
       {"patch",
        &O::patch,
        "Transformers that read pictures: side of the squares that are their tokens, in pixels.",
        base::between(1, 4096),
        {"patch_size"}},
       {"batch_norm", &O::batch_norm, "Batch normalisation after each hidden layer of a classifier."}}};
}

}  // namespace cairn::model
