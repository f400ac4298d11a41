#include "train/build.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory_scope.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "data/chat/model_files.h"
#include "data/corpus/tokenize_progress.h"
#include "data/samples/document_starts.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "kernels/gemm/fp8_cuda.h"
#include "model/batch_norm.h"
#include "model/trainable.h"
#include "optim/bf16_optimizer.h"
#include "train/fp8_linear.h"
#include "train/given_plan.h"
#include "train/loss_chunks.h"
#include "train/model_from.h"
#include "train/planned.h"
#include "train/state/full_state.h"
#include "train/state/restore.h"
#include "train/steps/cuda_graph_step.h"
#include "train/steps/device_graph.h"
#include "train/steps/dpo.h"
#include "train/steps/gradient_checksums.h"
#include "train/steps/masha_step.h"
#include "train/steps/one_byte_step.h"
#include "train/steps/reference_weights.h"

namespace cairn::train {
namespace {

data::OpenedData open_data(comm::World& world, const Settings& settings, const Start& start) {
  data::CorpusOptions options{
      .held_out_fraction = settings.eval.fraction, .cache_folder = start.cache.string(), .threads = start.threads, .progress = {}};
  if (!start.terminal) return data::open_data(settings.data, options, world.log());
  data::TokenizeProgress progress(*start.terminal, world.wall());
  options.progress = std::ref(progress);
  data::OpenedData opened = data::open_data(settings.data, options, world.log());
  progress.finish();
  return opened;
}

// Parameters and gradients as the plan lays them out.
void place(Job& job, comm::World& world, const std::vector<bool>& trained) {
  const Settings& s = job.config.settings;
  Engine& engine = job.engine;
  parallel::fit_to_model(job.config.plan, *engine.model, s.layout.pipeline, job.data.length);
  const planner::StepRules rules = step_rules(s, *engine.model, job.config.plan, job.data.length, job.config.device.is_cuda());
  const bool matrices = rules.whole_parameters;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(job.config.device), low = options.dtype(at::kBFloat16);
  const int64_t least = rules.bucket_bytes / 4;
  engine.store = std::make_unique<parallel::ParameterStore>(
      parallel::ParameterStore::Parts{.world = world,
                                      .model = *engine.model,
                                      .plan = job.config.plan,
                                      .trained = trained,
                                      .master = s.train.parameters == "bf16" ? low : options,
                                      .compute = s.train.precision == "bf16" ? low : options,
                                      .gradients = s.train.gradients == "bf16" ? low : options,
                                      .whole_parameters = matrices,
                                      .min_unit_elements = least,
                                      .accumulate_unsharded = rules.accumulate_unsharded,
                                      .reuse_gradient_memory = job.config.device.is_cuda() && !s.train.cuda_graph});
  job.assembly = std::make_unique<parallel::FullTensorGather>(parallel::FullTensorGather::Parts{
      .world = world, .model = *engine.model, .plan = job.config.plan, .whole_parameters = matrices, .min_unit_elements = least});
  for (const parallel::ParameterPiece& piece : engine.store->pieces()) {
    if (!piece.gradient.defined()) continue;
    engine.kept_views.push_back({piece.name, piece.value});
    engine.gradient_views.push_back({piece.name, piece.gradient});
  }
  for (size_t i = 0; i < trained.size(); ++i)
    if (const model::Parameter& one = engine.model->parameters()[i]; trained[i]) engine.trained_whole.push_back({one.name, one.elements()});
  engine.buffers = engine.model->make_buffers(options);
  engine.recompute_stage = rules.recompute_stage;
  engine.recompute_last = rules.recompute_last;
  engine.recompute = rules.recompute;
  engine.loss_chunks = loss_chunks_of(s, *engine.model, job.config.plan, job.data.length, job.config.device.is_cuda());
  engine.offload_inputs = s.layout.recompute.inputs == "host";
}

// Books what stays for the whole run, from the tensors themselves.
void book(Job& job) {
  const auto add = [&](base::MemoryUse use, int64_t bytes) { job.instruments.booked.emplace_back(*job.instruments.memory, use, bytes); };
  add(base::MemoryUse::parameters, job.engine.store->parameter_bytes());
  add(base::MemoryUse::gradients, job.engine.store->gradient_bytes());
  int64_t optimizer = 0;
  for (const mesh::NamedTensor& state : job.engine.optimizer->state()) optimizer += static_cast<int64_t>(state.tensor.nbytes());
  add(base::MemoryUse::optimizer, optimizer);
}

void book_step(Job& job) {
  int64_t bytes = 0;
  for (const mesh::NamedTensors& part : {job.step->state(), job.step->rank_state()})
    for (const mesh::NamedTensor& one : part) bytes += static_cast<int64_t>(one.tensor.nbytes());
  if (bytes > 0) job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::optimizer, bytes);
}

std::vector<optim::ParameterPiece> pieces_of(const Engine& engine) {
  std::vector<optim::ParameterPiece> pieces;
  for (const parallel::ParameterPiece& piece : engine.store->pieces())
    if (piece.gradient.defined()) pieces.push_back(make_piece(engine.model->parameters()[piece.parameter], piece.value, piece.gradient));
  return pieces;
}

// Where training begins: new values, or those of model.from.
void start_weights(Job& job, const std::optional<snapshot::Pretrained>& pretrained, comm::World& world) {
  for (const StateTensor& one : parameter_state(job)) {
    if (!one.mine.defined()) continue;
    if (one.mine.sizes().vec() == one.shape) {
      start_values(job, one.parameter, one.mine);
    } else {  // one parameter at a time
      const at::Tensor whole = at::empty(one.shape, at::kFloat);
      start_values(job, one.parameter, whole);
      job.engine.store->load(one.parameter, whole);
    }
  }
  if (pretrained) start_from(job, *pretrained, world);
  job.engine.store->updated();
}

// What train.method names; pairs have one of their own (learn_from_pairs).
std::unique_ptr<Step> choose_step(Job& job, comm::World& world, const std::vector<bool>& trained) {
  const Settings& s = job.config.settings;
  Engine& engine = job.engine;
  const auto replicas = [&]() -> comm::Group& { return world.group(job.config.plan.mesh.peers(world.rank(), "dp")); };
  if (s.train.method != "gradient" && s.train.method != "one_byte" && job.config.device.is_cuda())
    base::fail_input("train.method = {}: works on the CPU only so far: use --device cpu", s.train.method);
  if (s.train.check_every > 0 && job.config.device.is_cuda() && !s.train.deterministic)
    base::fail_input(
        "train.check_every = {}: a GPU adds attention's gradients up in any order, and no two are the same: set train.deterministic = true "
        "as well",
        s.train.check_every);
  if (takes_masha_steps(s)) return make_masha_step(engine, masha_parts(s, replicas(), job.data.length));
  if (s.train.method == "one_byte")
    return make_one_byte_step(engine, {.options = s.one_byte,
                                       .run = static_cast<uint64_t>(s.train.seed),
                                       .machines = replicas(),
                                       .trained = trained,
                                       .log = job.config.writes ? job.config.out / "rounds.bin" : std::filesystem::path()});
  if (s.train.cuda_graph && !job.config.device.is_cuda())
    base::fail_input("train.cuda_graph = true: is for GPUs, and this runs on the CPU: leave it out, or use --device cuda");
  if (s.train.cuda_graph)
    return make_cuda_graph_step(in_turn(parallel::execute), std::make_unique<CudaGraphStep>(engine.store->reducer(), make_cuda_graph));
  return make_step(engine.pipeline ? Execution([&engine](std::span<const parallel::Pass> passes) { return engine.pipeline->run(passes); })
                                   : in_turn(parallel::execute),
                   s.train.check_every);
}

// Pairs are learned from by comparing with the weights as they are now.
void learn_from_pairs(Job& job, const std::vector<bool>& trained) {
  // As passes read them, in whatever precision.
  const parallel::ParameterStore& store = *job.engine.store;
  const auto reference = std::make_shared<const ReferenceWeights>(*job.engine.model, store.weights(), store.shard().layout, trained);
  job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::parameters, reference->bytes());
  job.reference = reference->checksum();
  job.engine.objective = model::make_preference(job.config.settings.dpo);
  job.step = make_step(in_turn(dpo_passes(reference)), job.config.settings.train.check_every);
}

// The files beside the weights that say how conversations are written and where an answer ends.
void carry_chat_files(Job& job, const std::optional<snapshot::Pretrained>& pretrained) {
  if (!job.data.chat) return;
  data::SpecialTokenIds ends{.eos = {job.data.tokenizer->end_of_text()}};
  if (pretrained && !pretrained->shape.tokens.eos.empty())
    ends = {pretrained->shape.tokens.bos, pretrained->shape.tokens.pad, pretrained->shape.tokens.eos};
  data::put_chat_files(*job.data.chat, *job.data.tokenizer, ends, job.carried);
}

// Who takes steps together with this rank, where they write, and which samples they have.
void join_step_group(Job& job, comm::World& world, const std::filesystem::path& out) {
  const parallel::Plan& plan = job.config.plan;
  const bool apart = parallel::islands_step_separately(plan);
  const int island = apart && plan.islands == 1 ? plan.mesh.coordinate(world.rank(), "island") : 0;
  job.engine.step_group = apart ? &world.group(parallel::step_group_of(plan, world.rank()), "step_group") : &world.everyone();
  job.config.out = island == 0 || out.empty() ? out : out / fmt::format("island-{}", island);
  job.config.writes = job.engine.step_group->rank() == 0 && !out.empty();
  const std::vector<int> sharing = plan.mesh.peers_along(world.rank(), parallel::kSampleAxes);
  const auto mine = [&](int rank) { return !apart || plan.islands > 1 || plan.mesh.coordinate(rank, "island") == island; };
  job.shares.data_rank = static_cast<int>(std::find(sharing.begin(), sharing.end(), world.rank()) - sharing.begin());
  job.shares.data_ranks = static_cast<int>(sharing.size());
  job.shares.step_group_first = static_cast<int>(std::find_if(sharing.begin(), sharing.end(), mine) - sharing.begin());
  job.shares.step_group_ranks = static_cast<int>(std::count_if(sharing.begin(), sharing.end(), mine));
  CAIRN_CHECK(std::all_of(sharing.begin() + job.shares.step_group_first,
                          sharing.begin() + job.shares.step_group_first + job.shares.step_group_ranks, mine),
              "the samples of island {} do not lie together", island);
  job.shares.data_share = static_cast<double>(job.shares.step_group_ranks) / job.engine.step_group->size();
}

}  // namespace

data::BatchRange Job::samples_of(int64_t count, int rank) const {
  const data::BatchRange island = data::replica_range(count, plan.island, plan.islands);
  const data::BatchRange own = data::replica_range(island.count, rank, data_ranks);
  return {island.first + own.first, own.count};
}

namespace {

// One rule for the replicas that take every step together, and one for islands where these are apart.
std::unique_ptr<sync::Sync> make_syncs(Job& job, comm::World& world, const RemoteIslandStart& remote) {
  Engine& engine = job.engine;
  const Settings& s = job.config.settings;
  const mesh::Mesh& mesh = job.config.plan.mesh;
  sync::Replica replica{.replica_group = world.group(mesh.peers_along(world.rank(), parallel::replicating_axes(job.config.plan))),
                        .model_group = world.alone(),
                        .parameters = engine.kept_views,
                        .gradients = engine.gradient_views,
                        .model = engine.trained_whole,
                        .steps = s.train.steps,
                        .seed = static_cast<uint64_t>(s.train.seed),
                        .trace = job.instruments.trace.get()};
  std::vector<std::unique_ptr<sync::Sync>> rules;
  rules.push_back(sync::make_sync(s.sync, replica));
  if (!parallel::islands_step_separately(job.config.plan)) return sync::make_chain(std::move(rules));
  if (!model::running_buffers(engine.buffers).empty())
    base::fail_input(
        "sync.island.kind = {}: this model keeps running statistics (batch norm), which differ from island to island: use "
        "all_reduce, or a model without them",
        s.island.kind);
  if (job.config.plan.islands > 1) job.remote = std::make_unique<RemoteIslandHost>(job, world, remote);
  rules.push_back(
      sync::make_sync(s.island, {.replica_group = job.remote ? world.alone() : world.group(mesh.peers(world.rank(), "island"), "islands"),
                                 .model_group = *engine.step_group,
                                 .parameters = engine.kept_views,
                                 .gradients = engine.gradient_views,
                                 .model = engine.trained_whole,
                                 .steps = s.train.steps,
                                 .seed = static_cast<uint64_t>(s.train.seed),
                                 .trace = job.instruments.trace.get(),
                                 .remote_islands = job.remote ? job.remote->remote() : nullptr}));
  return sync::make_chain(std::move(rules));
}

}  // namespace

mesh::Batch make_batch(const Job& job, int64_t step) {
  const std::vector<int64_t> ids = job.sampler->ids(step - 1 + job.progress.batches_passed);
  const data::BatchRange share = job.shares.samples_of(static_cast<int64_t>(ids.size()), job.shares.data_rank);
  mesh::Batch batch;
  job.data.samples->fill(std::span(ids).subspan(static_cast<size_t>(share.first), static_cast<size_t>(share.count)), batch);
  if (job.subset.weighted()) {
    batch.weights = at::empty({share.count}, at::kFloat);
    for (int64_t i = 0; i < share.count; ++i)
      batch.weights.mutable_data_ptr<float>()[i] = job.subset.weight(ids[static_cast<size_t>(share.first + i)]);
  }
  batch.progress = job.sampler->progress(step - 1);
  if (job.config.device.is_cuda()) {  // so that the copy to the device makes nobody wait
    data::add_document_starts(batch);
    batch.ids = batch.ids.pin_memory();
    if (batch.weights.defined()) batch.weights = batch.weights.pin_memory();
    for (auto& [name, field] : batch.fields) field.tensor = field.tensor.pin_memory();
  }
  return batch;
}

void start_loader(Job& job) {
  job.loader.reset();
  // The loader outlives no part of the job it reads, because it is the last member; the job itself must not move while it runs.
  Job* const self = &job;
  job.loader = std::make_unique<data::Loader>([self](int64_t step) { return make_batch(*self, step); }, job.progress.steps_done + 1,
                                              job.config.settings.train.steps + 1);
}

optim::ParameterPiece make_piece(const model::Parameter& of, at::Tensor parameter, at::Tensor gradient) {
  return {of.name, std::move(parameter), std::move(gradient), of.decays(),
          of.role == model::Parameter::Role::weight && of.shape.size() == 2};
}

void start_values(const Job& job, size_t parameter, const at::Tensor& whole) {
  model::start_values(job.engine.model->parameters()[parameter], whole.view({-1}),
                      base::Random(static_cast<uint64_t>(job.config.settings.train.seed)));
}

namespace {

// What islands that train apart cannot do.
void check_islands(const Settings& settings, const parallel::Plan& plan) {
  const std::string& kind = settings.island.kind;
  const int islands = std::max(plan.mesh.extent("island"), plan.islands);
  if (kind == "all_reduce") return;
  if (islands == 1)
    base::fail_input("sync.island.kind = {}: there is one island only: set mesh.island (or --islands), or leave the rule out", kind);
  if (settings.train.global_batch < islands)
    base::fail_input("train.global_batch = {}: {} islands share its samples out, and each needs at least one", settings.train.global_batch,
                     islands);
  if (settings.train.on_bad_step == "rollback")
    base::fail_input(
        "train.on_bad_step = rollback: an island cannot go back by itself while the others go on (sync.island.kind = {}): use skip or stop",
        kind);
  if (settings.data.kind == "preference")
    base::fail_input("sync.island.kind = {}: pairs are not learned from on islands that train apart yet: use all_reduce", kind);
}

// Whether micro-batches change over between the islands' pipelines, which is half of what NoLoCo is where there are any.
std::string routing_of(const Settings& settings, const parallel::Plan& plan, int64_t data_ranks) {
  const std::string& asked = settings.layout.pipeline.routing;
  const auto refusal = [&]() -> std::string {
    if (!parallel::islands_step_separately(plan))
      return "is for islands that train apart (mesh.island and sync.island.kind): elsewhere all replicas are alike";
    if (plan.islands > 1) return "islands that are started each by itself do not pass activations on: use mesh.island in one run";
    if (!plan.mesh.parts.empty()) return "needs islands that are laid out alike";
    if (settings.island.outer.pace == "own") return "islands work on each step together: leave sync.island.pace out";
    if (settings.train.global_batch % data_ranks != 0)
      return fmt::format("needs as many samples on every rank: use a train.global_batch that is a multiple of {}", data_ranks);
    return "";
  }();
  if (asked == "random" && !refusal.empty()) base::fail_input("pipeline.routing = random: {}", refusal);
  if (asked != "auto") return asked;
  return settings.island.kind == "noloco" && refusal.empty() ? "random" : "fixed";
}

// Sums of many small terms are no business of bf16: what it may hold is what one product or table gives, and the two uses of a tied table.
void check_gradients(const Settings& settings, const parallel::Plan& plan, int64_t samples) {
  if (settings.train.gradients == "fp32") return;
  const char* chosen = "train.gradients = bf16";
  if (settings.train.precision != "bf16") base::fail_input("{} needs train.precision = bf16: passes find them in fp32 otherwise", chosen);
  if (settings.train.method != "gradient")
    base::fail_input("{}: train.method = {} keeps its own sums in fp32: leave it out", chosen, settings.train.method);
  if (plan.mesh.size() > 1 || plan.islands > 1)
    base::fail_input("{}: gradients are summed over {} ranks, in fp32: leave it out, or use one rank", chosen,
                     plan.mesh.size() * plan.islands);
  if (plan.micro_batch < samples)
    base::fail_input("{}: a step of several passes sums them up, in fp32: leave it out, or set train.micro_batch = 0 (it is {})", chosen,
                     settings.train.micro_batch);
}

// Islands that train apart write each for itself, and one may be two snapshots ahead of another: they must have one in common.
void check_snapshots(const Settings& settings, const parallel::Plan& plan) {
  constexpr int64_t kKeptLeast = 3;
  if (settings.snapshot.mode == "async" && parallel::islands_step_separately(plan) && settings.snapshot.keep < kKeptLeast)
    base::fail_input(
        "snapshot.keep = {} with snapshot.mode = async: islands write each for itself, and may be two snapshots apart when they are ended "
        "by force: use {} or more, or snapshot.mode = sync",
        settings.snapshot.keep, kKeptLeast);
}

void check_fp8(const Settings& settings) {
  if (settings.train.fp8 == "none") {
    if (settings.train.fp8_layers != "all")
      base::fail_input("train.fp8_layers = \"{}\": nothing is in eight bits: set train.fp8 = \"layers\", or leave it out",
                       settings.train.fp8_layers);
    return;
  }
  if (settings.train.precision != "bf16")
    base::fail_input("train.fp8 = {} needs train.precision = bf16: what is not in eight bits is in bf16", settings.train.fp8);
  if (settings.data.kind == "preference")
    base::fail_input(
        "train.fp8 = {}: the reference model of a preference computes in bf16, and what codes leave out would count as a "
        "preference: leave it out",
        settings.train.fp8);
  if (settings.train.method != "gradient")
    base::fail_input("train.fp8 = {}: train.method = {} finds slopes in full precision: leave it out", settings.train.fp8,
                     settings.train.method);
}

void check_kernel_report(const Settings& settings, const at::Device& device) {
  if (!settings.log.kernels) return;
  if (!device.is_cuda())
    base::fail_input("log.kernels = true: is for GPUs, and this runs on the CPU: leave it out (log.trace shows what a step does)");
  if (settings.log.memory) base::fail_input("log.kernels = true: the profiler can be had once, and log.memory = true has it: drop one");
  if (settings.log.sync_check)
    base::fail_input("log.kernels = true: waits for the device after some steps, which log.sync_check = true forbids; drop one");
}

}  // namespace

parallel::Plan make_plan(const Settings& settings, int ranks) {
  parallel::Plan plan = parallel::make_plan(settings.layout, ranks);
  if (settings.train.spike_factor > 0 && settings.train.spike_factor <= 1)
    base::fail_input("train.spike_factor = {}: must be more than 1, or 0 to look for no spikes", settings.train.spike_factor);
  if (settings.train.parameters == "bf16" && settings.train.precision != "bf16")
    base::fail_input("train.parameters = bf16 needs train.precision = bf16: passes read the parameters as they are kept");
  check_fp8(settings);
  if (settings.train.precision == "bf16" && settings.model.kind == "classifier")
    base::fail_input("train.precision = bf16: the classifier computes in fp32 only; leave train.precision out");
  const int tp = plan.mesh.extent("tp"), cp = plan.mesh.extent("cp");
  if (settings.layout.tensor.overlap && settings.model.residual != "standard")
    base::fail_input(
        "tensor.overlap = true: is for model.residual = \"standard\"; a ladder's sums are on their way while the next block "
        "computes anyway: leave it out");
  if (settings.train.parameters == "bf16" && (tp > 1 || plan.zero > 0))
    base::fail_input("train.parameters = bf16: parameters that are kept in bf16 are not shared out: leave {} out, or keep them in fp32",
                     tp > 1 ? "mesh.tp" : "memory.zero");
  if (cp > 1 && settings.model.kind == "classifier")
    base::fail_input("mesh.cp = {}: the classifier reads no sequences to share out: use mesh.dp", cp);
  if (cp > 1 && settings.data.kind == "preference")
    base::fail_input("mesh.cp = {}: a preference compares whole answers, which cp takes apart: use mesh.dp or mesh.tp", cp);
  if (cp > settings.data.length)
    base::fail_input("mesh.cp = {}: texts of data.length = {} are too short for so many ranks: use mesh.dp", cp, settings.data.length);
  if (plan.zero == 3 && settings.data.kind == "preference")
    base::fail_input("memory.zero = 3: the reference model of a preference is kept whole on every rank: use memory.zero = 2");
  plan.sync["dp"] = settings.sync.kind;
  check_remote_island(settings);
  if (is_remote_island(settings.remote)) {
    plan.island = static_cast<int>(settings.remote.number);
    plan.islands = static_cast<int>(settings.remote.count);
  }
  if (plan.mesh.extent("island") > 1 || plan.islands > 1) plan.sync["island"] = settings.island.kind;
  check_islands(settings, plan);
  check_snapshots(settings, plan);
  check_one_byte(settings, plan);
  check_masha(settings, plan);
  check_cuda_graph(settings, plan);
  check_loss_chunks(settings, plan);
  check_repeats(settings);
  int64_t data_ranks = plan.islands;
  for (const std::string& axis : parallel::kSampleAxes) data_ranks *= plan.mesh.extent(axis);
  const int64_t share_largest = (settings.train.global_batch + data_ranks - 1) / data_ranks;
  plan.micro_batch = settings.train.micro_batch == 0 ? share_largest : std::min(settings.train.micro_batch, share_largest);
  plan.precision = settings.train.precision;
  check_gradients(settings, plan, share_largest);
  const int pp = plan.mesh.extent("pp");
  if (pp == 1 && settings.layout.pipeline.routing == "random")
    base::fail_input("pipeline.routing = random: there is no pipeline (mesh.pp = 1): leave it out");
  if (pp == 1) return plan;
  if (settings.data.kind == "preference")
    base::fail_input(
        "mesh.pp = {}: a preference is learned from by two passes, which a pipeline does not run yet: use mesh.dp, mesh.tp or "
        "memory.zero",
        pp);
  const parallel::PipelineOptions& pipeline = settings.layout.pipeline;
  if (settings.train.micro_batch > 0 && pipeline.micro_batches > 0)
    base::fail_input("train.micro_batch = {} and pipeline.micro_batches = {} say the same thing twice: leave one out",
                     settings.train.micro_batch, pipeline.micro_batches);
  plan.micro_batches = settings.train.micro_batch > 0 ? (share_largest + plan.micro_batch - 1) / plan.micro_batch
                       : pipeline.micro_batches > 0   ? pipeline.micro_batches
                                                      : std::min<int64_t>(4 * pp, share_largest);
  if (plan.micro_batches > share_largest)
    base::fail_input("pipeline.micro_batches = {}: a rank has {} samples a step: use at most {}, or raise train.global_batch",
                     plan.micro_batches, share_largest, share_largest);
  plan.micro_batch = (share_largest + plan.micro_batches - 1) / plan.micro_batches;
  plan.routing = routing_of(settings, plan, data_ranks);
  return plan;
}

void check_recipe(base::Recipe recipe, int ranks, const parallel::Plan* given) {
  if (given) use_layout_of(*given, recipe, ranks > 0 ? ranks : given->mesh.size());
  const Settings settings = read_settings(recipe);
  if (ranks == 0) return;
  parallel::Plan plan = make_plan(settings, ranks);
  if (given) take_from(*given, plan);
}

std::unique_ptr<Job> build(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset) {
  at::set_num_threads(start.threads);
  auto job = std::make_unique<Job>();
  double since = base::seconds(world.wall().now());
  const auto took = [&](const char* part) {
    const double now = base::seconds(world.wall().now());
    job->instruments.startup.emplace_back(part, now - std::exchange(since, now));
  };
  if (start.plan) use_layout_of(*start.plan, recipe, world.size());
  job->config.settings = read_settings(recipe);
  job->config.recipe_toml = recipe.resolved_toml();
  job->config.device = kernels::device_from_name(start.device);
  if (job->config.settings.train.deterministic) job->repeatable = std::make_unique<kernels::DeterministicAlgorithms>();
  check_kernel_report(job->config.settings, job->config.device);
  if (job->config.settings.log.kernels) job->instruments.kernel_report = std::make_unique<KernelReport>(job->config.device);
  if (job->config.settings.log.memory) job->instruments.memory_report = std::make_unique<MemoryReport>(job->config.device);
  (void)at::empty({1}, job->config.device);  // a GPU starts with its first tensor
  took("device");
  job->config.plan = make_plan(job->config.settings, world.size());
  if (start.plan) take_from(*start.plan, job->config.plan);
  join_step_group(*job, world, start.out);
  job->bad_steps =
      std::make_unique<BadSteps>(*job->engine.step_group, job->config.settings.train, job->config.settings.optim.learning_rate);
  if (job->bad_steps->before_update() && job->config.settings.log.sync_check)
    base::fail_input("train.on_bad_step = {}: an update waits for the numbers of its step, which log.sync_check = true forbids; drop one",
                     job->config.settings.train.on_bad_step);
  job->instruments.memory = std::make_unique<base::MemoryTags>();
  job->instruments.trace =
      std::make_unique<base::Trace>(world.wall(), world.rank(), job->config.settings.log.trace ? base::Trace::kEventsMax : 0);

  // Before the data: a damaged one is told at once. Islands that were ended by force are at most two snapshots apart.
  const int64_t every = job->config.settings.snapshot.every, apart_most = every > 0 ? 2 * every : std::numeric_limits<int64_t>::max();
  const std::optional<snapshot::OpenSnapshot> resumed =
      start.resume ? find_snapshot(world, *job->engine.step_group, job->config.out.string(), start.resume_step_last, apart_most)
                   : std::nullopt;
  job->data = open_data(world, job->config.settings, start);
  took("data");
  const Settings& s = job->config.settings;
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
  const mesh::Mesh& mesh = job->config.plan.mesh;
  for (const char* axis : {"island", "dp", "cp", "tp", "ep"})
    if (mesh.extent(axis) > 1) engine.axes.put(axis, world.group(mesh.peers(world.rank(), axis)));
  engine.loss_share = 1.0 / mesh.extent("tp");  // ranks along tp find the same loss
  engine.micro_batches = job->config.plan.micro_batches;
  engine.context = job->config.plan.context;
  engine.overlap = s.layout.tensor.overlap;
  engine.late_sums = s.layout.tensor.late_sums;
  engine.draws_by_token = s.model.dropout > 0;
  engine.micro_batch = job->config.plan.micro_batch;
  engine.clip_norm = s.optim.clip;
  engine.random = base::Random(static_cast<uint64_t>(s.train.seed)).for_purpose("pass");
  engine.trace = job->instruments.trace.get();
  engine.memory = job->instruments.memory.get();
  const std::vector<bool> trained = model::trainable(*engine.model, s.model.train);
  const bool slopes = s.train.method == "one_byte";
  place(*job, world, slopes ? std::vector<bool>(trained.size(), false) : trained);  // without gradients there is nothing to keep them in
  engine.fp8 = fp8_linear_layers(s, *engine.model, job->config.plan);
  if (engine.fp8 && job->config.device.is_cuda() && !kernels::has_fp8(job->config.device))
    base::fail_input("train.fp8 = {}: this GPU does not multiply in eight bits (compute capability 8.9 or more does): leave it out",
                     s.train.fp8);
  // Steps that are their own update rule leave it nothing.
  const std::vector<optim::ParameterPiece> pieces = takes_masha_steps(s) ? std::vector<optim::ParameterPiece>{} : pieces_of(engine);
  {
    const base::MemoryScope purpose("optimizer");
    engine.optimizer = s.train.parameters == "bf16"
                           ? optim::make_bf16_optimizer(s.optim, pieces, base::Random(static_cast<uint64_t>(s.train.seed)))
                           : optim::make_optimizer(s.optim, pieces);
  }
  engine.pieces = static_cast<int64_t>(engine.kept_views.size());
  engine.sync = make_syncs(*job, world, start.remote);

  book(*job);

  if (mesh.extent("pp") > 1) {
    const auto peers = [&](const std::vector<std::string>& axes) -> comm::Group& {
      return world.group(mesh.peers_along(world.rank(), axes), "pipeline");
    };
    engine.pipeline = std::make_unique<parallel::Pipeline>(
        *engine.model, job->config.plan,
        job->config.plan.routing == "random" ? parallel::island_pipelines(job->config.plan, peers({"island", "pp"}), world.rank())
                                             : parallel::single_pipeline(peers({"pp"})),
        [&layout = job->config.settings.layout, ranks = mesh.extent("pp")](int m) {
          return parallel::schedule_of(layout.pipeline, ranks, m);
        });
  }
  job->step = choose_step(*job, world, trained);
  book_step(*job);
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
    restore(*job, world.log(), *resumed, job->config.out.string());
  } else if (!pairs) {
    start_weights(*job, pretrained, world);
  }
  // An island that joins others at work goes on where they are; what it did not train it did not update either.
  const int64_t begun = engine.sync->begin(job->progress.steps_done);
  job->progress.updates_skipped += begun - job->progress.steps_done;
  job->progress.steps_done = begun;
  start_loader(*job);
  took("model");
  return job;
}

}  // namespace cairn::train
