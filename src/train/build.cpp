#include "train/build.h"

#include <functional>
#include <utility>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/chat_files.h"
#include "data/shard.h"
#include "data/tokenize_progress.h"
#include "kernels/adamw.h"
#include "kernels/aten.h"
#include "mesh/chosen_gradients.h"
#include "model/trainable.h"
#include "optim/rounding_optimizer.h"
#include "train/dpo.h"
#include "train/model_from.h"
#include "train/reference.h"
#include "train/restore.h"

namespace cairn::train {
namespace {

at::Device choose_device(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (!kernels::has_cuda_kernels())
    base::fail_input("--device cuda: this build has no CUDA; build it with CAIRN_PRESET=cuda where nvcc is installed");
  if (!at::hasCUDA()) base::fail_input("--device cuda: no usable GPU was found (nvidia-smi shows what the driver sees)");
  return at::Device(at::kCUDA, 0);
}

data::Opened open_data(comm::World& world, const Settings& settings, const Start& start) {
  data::CorpusOptions options{
      .held_out_fraction = settings.eval.fraction, .cache_folder = start.cache.string(), .threads = start.threads, .progress = {}};
  if (!start.terminal) return data::open_data(settings.data, options, world.log());
  data::TokenizeProgress progress(*start.terminal, world.wall());
  options.progress = std::ref(progress);
  data::Opened opened = data::open_data(settings.data, options, world.log());
  progress.finish();
  return opened;
}

// Buffers for parameters and gradients, one flat piece each; gradients come from the group that will reduce them.
void place(Engine& engine, comm::Group& replicas, const at::Device& device, const std::vector<bool>& trained, const TrainOptions& train) {
  const mesh::FlatLayout whole = engine.model->layout(), layout = mesh::chosen_layout(whole, trained);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto low = options.dtype(at::kBFloat16);
  engine.weights = std::make_unique<model::FlatWeights>(whole, at::empty({whole.elements}, train.parameters == "bf16" ? low : options));
  if (train.precision == "bf16" && train.parameters == "fp32")
    engine.lowered = std::make_unique<model::FlatWeights>(whole, at::empty({whole.elements}, low));
  at::Tensor gradients;
  if (device.is_cpu()) {
    engine.gradient_memory = replicas.allocate(layout.elements * static_cast<int64_t>(sizeof(float)));
    gradients = at::from_blob(engine.gradient_memory.get(), {layout.elements}, options);
  } else {
    gradients = at::empty({layout.elements}, options);
  }
  std::vector<int32_t> uses;
  engine.parameter_views = whole.views(engine.weights->flat());
  for (size_t i = 0; i < trained.size(); ++i) {
    if (!trained[i]) continue;
    uses.push_back(engine.model->uses()[i]);
    engine.trained_views.push_back(engine.parameter_views[i]);
  }
  engine.gradients = std::make_unique<mesh::FlatGradients>(layout, gradients, uses);
  if (layout.pieces.size() < whole.pieces.size()) engine.chosen = mesh::make_chosen_gradients(whole, trained, *engine.gradients);
  engine.buffers = engine.model->make_buffers(options);
  engine.gradient_views = layout.views(gradients);
}

// Books what stays for the whole run, from the tensors themselves.
void book(Job& job) {
  const auto add = [&](base::MemoryUse use, int64_t bytes) { job.booked.emplace_back(*job.memory, use, bytes); };
  add(base::MemoryUse::parameters, static_cast<int64_t>(job.engine.weights->flat().nbytes()));
  if (job.engine.lowered) add(base::MemoryUse::parameters, static_cast<int64_t>(job.engine.lowered->flat().nbytes()));
  add(base::MemoryUse::gradients, static_cast<int64_t>(job.engine.gradients->flat().nbytes()));
  int64_t optimizer = 0;
  for (const mesh::NamedTensor& state : job.engine.optimizer->state()) optimizer += static_cast<int64_t>(state.tensor.nbytes());
  add(base::MemoryUse::optimizer, optimizer);
}

std::vector<optim::Piece> pieces_of(const Engine& engine) {
  std::vector<optim::Piece> pieces;
  size_t next = 0;  // the trained ones lie in the model's order
  for (const model::Parameter& parameter : engine.model->parameters()) {
    if (next == engine.trained_views.size() || engine.trained_views[next].name != parameter.name) continue;
    pieces.push_back(make_piece(parameter, engine.trained_views[next].tensor, engine.gradient_views[next].tensor));
    ++next;
  }
  return pieces;
}

// Where training begins: new values, or those of model.from.
void start_weights(Job& job, const std::optional<snapshot::Pretrained>& pretrained, comm::World& world) {
  model::materialise(*job.engine.model, job.engine.weights->flat(), base::Random(static_cast<uint64_t>(job.settings.train.seed)));
  if (pretrained) start_from(job, *pretrained, world);
}

// Pairs are learned from by comparing with the weights as they are now.
void learn_from_pairs(Job& job, const std::vector<bool>& trained) {
  weights_of_pass(job.engine);  // as passes read them, in whatever precision
  const model::FlatWeights& live = job.engine.lowered ? *job.engine.lowered : *job.engine.weights;
  const auto reference = std::make_shared<const Reference>(*job.engine.model, live, trained);
  job.booked.emplace_back(*job.memory, base::MemoryUse::parameters, reference->bytes());
  job.reference = reference->checksum();
  job.engine.objective = model::make_preference(job.settings.dpo);
  job.step = make_step(against(reference));
}

// The files beside the weights that say how conversations are written and where an answer ends.
void carry_chat_files(Job& job, const std::optional<snapshot::Pretrained>& pretrained) {
  if (!job.data.chat) return;
  data::ModelEnds ends{.eos = {job.data.tokenizer->end_of_text()}};
  if (pretrained && !pretrained->shape.tokens.eos.empty())
    ends = {pretrained->shape.tokens.bos, pretrained->shape.tokens.pad, pretrained->shape.tokens.eos};
  data::put_chat_files(*job.data.chat, *job.data.tokenizer, ends, job.carried);
}

// This rank's share of the batch of `step` (from 1), made by the loader's thread.
mesh::Batch make_batch(const Job& job, int64_t step) {
  const std::vector<int64_t> ids = job.sampler->ids(step - 1 + job.batches_passed);
  const data::Share share = data::share_of(static_cast<int64_t>(ids.size()), job.replicas->rank(), job.replicas->size());
  mesh::Batch batch;
  job.data.samples->fill(std::span(ids).subspan(static_cast<size_t>(share.first), static_cast<size_t>(share.count)), batch);
  if (job.subset.weighted()) {
    batch.weights = at::empty({share.count}, at::kFloat);
    for (int64_t i = 0; i < share.count; ++i)
      batch.weights.mutable_data_ptr<float>()[i] = job.subset.weight(ids[static_cast<size_t>(share.first + i)]);
  }
  batch.progress = job.sampler->progress(step - 1);
  if (job.device.is_cuda()) {  // so that the copy to the device makes nobody wait
    batch.ids = batch.ids.pin_memory();
    if (batch.weights.defined()) batch.weights = batch.weights.pin_memory();
    for (auto& [name, field] : batch.fields) field.tensor = field.tensor.pin_memory();
  }
  return batch;
}

}  // namespace

void start_loader(Job& job) {
  job.loader.reset();
  // The loader outlives no part of the job it reads, because it is the last member; the job itself must not move while it runs.
  Job* const self = &job;
  job.loader = std::make_unique<data::Loader>([self](int64_t step) { return make_batch(*self, step); }, job.steps_done + 1,
                                              job.settings.train.steps + 1);
}

optim::Piece make_piece(const model::Parameter& of, at::Tensor parameter, at::Tensor gradient) {
  return {of.name, std::move(parameter), std::move(gradient), of.decays(),
          of.role == model::Parameter::Role::weight && of.shape.size() == 2};
}

parallel::Plan make_plan(const Settings& settings, int ranks) {
  const int64_t dp = settings.mesh.dp == 0 ? ranks : settings.mesh.dp;
  if (dp != ranks)
    base::fail_input("mesh.dp = {} needs {} ranks and there are {}: pass --nproc {}, or leave mesh.dp at 0", dp, dp, ranks, dp);
  if (settings.train.spike_factor > 0 && settings.train.spike_factor <= 1)
    base::fail_input("train.spike_factor = {}: must be more than 1, or 0 to look for no spikes", settings.train.spike_factor);
  if (settings.train.parameters == "bf16" && settings.train.precision != "bf16")
    base::fail_input("train.parameters = bf16 needs train.precision = bf16: passes read the parameters as they are kept");
  if (settings.train.precision == "bf16" && settings.model.kind == "classifier")
    base::fail_input("train.precision = bf16: the classifier computes in fp32 only; leave train.precision out");
  parallel::Plan plan;
  plan.mesh.axes = {{"dp", ranks}};
  plan.sync["dp"] = settings.sync.kind;
  const int64_t share_largest = (settings.train.global_batch + dp - 1) / dp;
  plan.micro_batch = settings.train.micro_batch == 0 ? share_largest : std::min(settings.train.micro_batch, share_largest);
  plan.precision = settings.train.precision;
  return plan;
}

void check_recipe(base::Recipe recipe, int ranks) {
  const Settings settings = read_settings(recipe);
  make_plan(settings, ranks);
}

std::unique_ptr<Job> build(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset) {
  at::set_num_threads(start.threads);
  auto job = std::make_unique<Job>();
  job->settings = read_settings(recipe);
  job->recipe_toml = recipe.resolved_toml();
  job->writes = world.rank() == 0 && !start.out.empty();
  job->device = choose_device(start.device);
  job->plan = make_plan(job->settings, world.size());
  job->bad_steps = std::make_unique<BadSteps>(world.everyone(), job->settings.train, job->settings.optim.learning_rate);
  if (job->bad_steps->before_update() && job->settings.log.sync_check)
    base::fail_input("train.on_bad_step = {}: an update waits for the numbers of its step, which log.sync_check = true forbids; drop one",
                     job->settings.train.on_bad_step);
  job->replicas = &world.group(job->plan.mesh.peers(world.rank(), "dp"));
  job->memory = std::make_unique<base::MemoryTags>();
  job->trace = std::make_unique<base::Trace>(world.wall(), world.rank(), job->settings.log.trace ? base::Trace::kEventsMax : 0);

  // Before the data: a damaged one is told at once.
  const std::optional<snapshot::Opened> resumed =
      start.resume ? find_snapshot(world, start.out.string(), start.resume_step_last) : std::nullopt;
  job->data = open_data(world, job->settings, start);
  const Settings& s = job->settings;
  const std::optional<snapshot::Pretrained> pretrained = open_model_from(*job, world.log());
  carry_chat_files(*job, pretrained);
  const model::Inputs inputs{.vocab = job->data.tokenizer ? job->data.tokenizer->vocab_size() : 0,
                             .length = job->data.length,
                             .features = job->data.features,
                             .classes = job->data.classes,
                             .end_of_text = job->data.tokenizer ? job->data.tokenizer->end_of_text() : -1};
  model::Task task = pretrained ? model::make_task(s.model, inputs, pretrained->shape, lora_of(s.lora)) : model::make_task(s.model, inputs);
  Engine& engine = job->engine;
  engine.model = std::move(task.model);
  engine.objective = std::move(task.objective);
  engine.axes.put("dp", *job->replicas);
  engine.micro_batch = job->plan.micro_batch;
  engine.clip_norm = s.optim.clip;
  engine.random = base::Random(static_cast<uint64_t>(s.train.seed)).for_purpose("pass");
  engine.trace = job->trace.get();
  engine.memory = job->memory.get();
  const std::vector<bool> trained = model::trainable(*engine.model, s.model.train);
  place(engine, *job->replicas, job->device, trained, s.train);
  engine.optimizer = s.train.parameters == "bf16"
                         ? optim::make_rounding_optimizer(s.optim, pieces_of(engine), base::Random(static_cast<uint64_t>(s.train.seed)))
                         : optim::make_optimizer(s.optim, pieces_of(engine));
  engine.pieces = static_cast<int64_t>(engine.trained_views.size());
  engine.sync = sync::make_sync(s.sync, {*job->replicas, world.alone(), engine.trained_views, engine.gradient_views});

  book(*job);

  job->step = make_step(parallel::execute);
  job->subset = subset.within(job->data.samples->training());
  job->sampler = data::make_sampler(s.data.sampler, {.from = job->subset,
                                                     .global_batch = s.train.global_batch,
                                                     .steps = s.train.steps,
                                                     .seed = static_cast<uint64_t>(s.train.seed),
                                                     .streams = job->data.streams});
  const auto steps = static_cast<double>(s.train.steps);
  job->schedule = {.shape = s.optim.schedule,
                   .highest = s.optim.learning_rate,
                   .warmup = static_cast<double>(s.optim.warmup_steps) / steps,
                   .final_share = s.optim.final_share,
                   .decay_share = s.optim.decay_share,
                   .decay_shape = s.optim.decay_shape};
  const bool pairs = s.data.kind == "preference";
  if (pairs) {  // also where a snapshot will take their place: its run began with them
    start_weights(*job, pretrained, world);
    learn_from_pairs(*job, trained);
  }
  if (resumed) {
    restore(*job, world.log(), *resumed, start.out.string());
  } else if (!pairs) {
    start_weights(*job, pretrained, world);
  }
  start_loader(*job);
  return job;
}

}  // namespace cairn::train
