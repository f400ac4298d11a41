#include "train/parameter_piece.h"

#include <utility>

#include "base/random.h"
#include "train/job.h"

namespace cairn::train {

optim::ParameterPiece make_piece(const model::Parameter& of, at::Tensor parameter, at::Tensor gradient) {
  return {.name = of.name,
          .parameter = std::move(parameter),
          .gradient = std::move(gradient),
          .decays = of.decays(),
          .hidden = of.role == model::Parameter::Role::weight && of.shape.size() == 2,
          .fan_in_fan_out = of.fan_in_fan_out};
}

void start_values(const Job& job, size_t parameter, const at::Tensor& whole) {
  model::initialize_parameter(job.engine.model->parameters()[parameter], whole.view({-1}),
                              base::Random(static_cast<uint64_t>(job.config.settings.train.seed)));
}

}  // namespace cairn::train
