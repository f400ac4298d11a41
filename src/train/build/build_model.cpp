#include <limits>

#include "base/check.h"
#include "comm/world.h"
#include "data/retrieval/dataset.h"
#include "kernels/fp8.h"
#include "model/families/vit_config.h"
#include "model/model.h"
#include "train/build/build_steps.h"
#include "train/fp8_linear.h"
#include "train/model_from.h"

namespace cairn::train {
namespace {

// Sets the pass options that follow from settings and plan. place_parameters.cpp sets those that depend on memory.
void set_pass_options(Job& job) {
  const Settings& s = job.config.settings;
  const parallel::Plan& plan = job.config.plan;
  Engine& engine = job.engine;
  engine.loss_share = 1.0 / plan.mesh.extent("tp");  // ranks along tp compute the same loss
  engine.micro_batching.count = plan.micro_batches;
  // Where batches differ in size, all samples of a rank are one pass unless train.micro_batch says otherwise.
  const bool any_size = data::sampler_needs(s.data.sampler).clips && s.train.micro_batch == 0;
  engine.micro_batching.samples = any_size ? std::numeric_limits<int64_t>::max() : plan.micro_batch;
  engine.context = plan.context;
  engine.options.overlap = s.layout.tensor.overlap;
  engine.options.overlap_residual_sums = s.layout.tensor.overlap_residual_sums;
  engine.options.draws_by_token = s.model.dropout > 0 || s.adapter.dropout > 0;
  engine.clip_norm = s.optim.max_grad_norm;
  engine.random = base::Random(static_cast<uint64_t>(s.train.seed)).for_purpose("pass");
  engine.trace = job.instruments.trace.get();
  engine.memory = job.instruments.memory.get();
}

}  // namespace

void build_model(Job& job, comm::World& world, const std::optional<snapshot::Pretrained>& pretrained) {
  const Settings& s = job.config.settings;
  const data::OpenedData& data = job.data;
  const model::DataShape inputs{.vocab = data.tokenizer ? data.tokenizer->vocab_size() : 0,
                                .length = s.data.needs().retrieval ? data::positions_needed(s.data) : data.length,
                                .features = data.features,
                                .classes = data.classes,
                                .end_of_text = data.tokenizer ? data.tokenizer->end_of_text() : -1,
                                .frames = data.shape.frames,
                                .size = data.image.channels > 0 ? data.image.size : data.shape.size,
                                .channels = data.image.channels,
                                .labels = data.image.class_names,
                                .retrieval = s.data.needs().retrieval};
  model::BuiltModel task =
      pretrained ? model::build_model(s.model, inputs, pretrained->shape, s.adapter.shape()) : model::build_model(s.model, inputs);
  job.engine.model = std::move(task.model);
  job.engine.objective = std::move(task.objective);
  if (data.image.channels > 0 && !job.engine.model->config_json().empty())
    job.carried.try_emplace("preprocessor_config.json", model::format_preprocessor(data.image.size));
  const mesh::Mesh& mesh = job.config.plan.mesh;
  for (const char* axis : {"island", "dp", "cp", "tp", "ep"})
    if (mesh.extent(axis) > 1) job.engine.axes.put(axis, world.group(mesh.peers(world.rank(), axis)));
  // Groups of batch norm may lie on all ranks that have samples of their own.
  if (data::sampler_needs(s.data.sampler).clips && job.shares.data_ranks > 1)
    job.engine.axes.put("samples", world.group(mesh.peers_along(world.rank(), parallel::kSampleAxes), "batch norm"));
  set_pass_options(job);
}

}  // namespace cairn::train
