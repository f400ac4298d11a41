#include "model/decoder/sparse_options.h"

namespace cairn::model {

base::Schema<SparseOptions> sparse_schema() {
  using O = SparseOptions;
  return {"model.sparse",
          "How a pruned model (cairn prune) trains: model.from has masks, and pruned weights stay 0.",
          {{"form", &O::form,
            "masked: the weights that are left train. mask_lora: two matrices of low rank are added to them. scale_lora: they are "
            "multiplied by two matrices of low rank. dense: masks are dropped, and all weights train.",
            kSparseFormNames},
           {"rank", &O::rank, "mask_lora, scale_lora: the rank.", base::between(1, 65536)},
           {"alpha", &O::alpha, "mask_lora: what is added is scaled by alpha / rank.", base::more_than(0)},
           {"keep_zeros", &O::keep_zeros,
            "Merging LoRA adapters (model.adapter) keeps pruned weights at 0. false: the merged model is dense."}}};
}

}  // namespace cairn::model
