#include "model/decoder/spectral_options.h"

namespace cairn::model {

base::Schema<SpectralOptions> spectral_schema() {
  using O = SpectralOptions;
  return {
      "model.spectral",
      "Sparse spectral training: linear layers are trained as U diag(s) V^T, all of s and a few columns of U and V at a time.",
      {{"rank", &O::rank,
        "Pairs of singular vectors of each layer that train at a time, at most the smaller width of any layer. 0: ordinary weights.",
        base::at_least(0)},
       {"iteration_steps", &O::iteration_steps, "Steps between two draws of pairs.", base::at_least(1)},
       {"round_iterations", &O::round_iterations,
        "Draws between two decompositions. 0: as many as visit every pair once, the singular values of the widest layer / rank.",
        base::at_least(0)},
       {"warmup_steps", &O::warmup_steps, "Steps of each iteration over which the learning rate of vectors rises from 0.",
        base::at_least(0)},
       {"sampling", &O::sampling,
        "How pairs are drawn. mixed: by singular value and uniformly, in equal parts. multinomial: by singular value. uniform. "
        "sequential: one after the other. top: the largest.",
        kSpectralSamplingNames},
       {"enhanced", &O::enhanced, "Gradients of vectors leave out their singular value, so that small directions learn too."},
       {"decompose", &O::decompose, "A round ends with a new singular value decomposition of each weight."},
       {"vector_lr_scale", &O::vector_lr_scale, "The learning rate of vectors, as a multiple of optim.learning_rate.", base::more_than(0)},
       {"s_lr_scale", &O::s_lr_scale, "The learning rate of singular values, as a multiple of optim.learning_rate.", base::more_than(0)},
       {"path", &O::path,
        "How products are computed. factored: by U, s and V. dense: the weight is put together for each product. auto: whichever needs "
        "fewer operations for the tokens of a pass.",
        kSpectralPathNames}}};
}

}  // namespace cairn::model
