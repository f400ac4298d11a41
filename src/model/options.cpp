#include "model/options.h"

#include "model/decoder/wiring.h"

namespace cairn::model {

base::Schema<ModelOptions> model_schema() {
  using O = ModelOptions;
  return {
      "model",
      "The shape of the model; its vocabulary comes from the tokenizer.",
      {{"kind", &O::kind, "Which model.", base::one_of(model_names())},
       {"from", &O::from,
        "A Hugging Face directory, a run or a snapshot to start from: its config.json gives all other keys here, and its weights "
        "the first values. Empty: a new model."},
       {"train", &O::train,
        "Parameters to train: names with * for anything (\"*.mlp.*\"), or roles (\"role:norm\"). Empty: the adapters, or all where there "
        "are none."},
       {"layers", &O::layers, "Decoder layers (hidden layers of a classifier).", base::between(1, 10000), {"num_hidden_layers"}},
       {"embed", &O::embed, "Width of the hidden states.", base::between(1, 1 << 20), {"hidden_size"}},
       {"heads", &O::heads, "Attention heads.", base::between(1, 65536), {"num_attention_heads"}},
       {"kv_heads",
        &O::kv_heads,
        "Heads of keys and values; each serves heads / kv_heads query heads.",
        base::between(1, 65536),
        {"num_key_value_heads"}},
       {"head_dim", &O::head_dim, "Width of a head; 0 takes embed / heads.", base::between(0, 65536)},
       {"mlp", &O::mlp, "Width of the gated layer.", base::between(1, 1 << 22), {"intermediate_size"}},
       {"tied", &O::tied, "Whether the head is the embedding table.", base::any(), {"tie_word_embeddings"}},
       {"rope_theta", &O::rope_theta, "Base of the rotary angles.", base::more_than(1)},
       {"norm_eps", &O::norm_eps, "Added inside the norm's root.", base::more_than(0), {"rms_norm_eps"}},
       {"dropout",
        &O::dropout,
        "Share of what the embedding and each block add to the hidden states that is left out at random in training.",
        base::between(0, 0.9),
        {"resid_pdrop"}},
       {"residual", &O::residual,
        "How layers are wired to the hidden states. ladder: each half of a layer reads them without the half before, so that ranks along "
        "tp sum up one half's result while they compute the next. parallel: both halves read the same, and are summed up together.",
        base::one_of(kWirings)},
       {"ladder_layers", &O::ladder_layers, "Which layers of a ladder are wired so: \"all\", \"last 8\", or numbers from 0 on: \"0,2,5\"."},
       {"convert", &O::convert,
        "The weights of model.from may come from a model that is wired otherwise: it computes something else at first, and has to be "
        "trained."},
       {"batch_norm", &O::batch_norm, "Batch normalisation after each hidden layer of a classifier."}}};
}

}  // namespace cairn::model
