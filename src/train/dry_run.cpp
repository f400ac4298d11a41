#include "train/dry_run.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory_tags.h"
#include "base/text.h"
#include "data/corpus/source.h"
#include "kernels/device.h"
#include "kernels/peak_flops.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/experts/copy_memory.h"
#include "parallel/layout/model_shard.h"
#include "train/flops.h"
#include "train/loss_chunks.h"
#include "train/offload/offload_plan.h"
#include "train/planned.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

constexpr int64_t kProgramBytes = int64_t{150} << 20;  // a process that has only loaded libtorch: measured 120 to 150 MB
constexpr int64_t kContextBytes = int64_t{700} << 20;  // the CUDA context and libraries on a GPU: measured 0.61 to 0.68 GiB on an H200

int64_t trained_elements(const model::Model& model, const std::vector<bool>& trained, const mesh::ParamId& of) {
  int64_t elements = 0;
  for (auto i = static_cast<size_t>(of.first); i < static_cast<size_t>(of.first + of.count); ++i)
    if (trained[i]) elements += model.parameters()[i].elements();
  return elements;
}

int64_t trained_elements(const model::Model& model, const std::vector<bool>& trained) {
  return trained_elements(model, trained, {0, static_cast<int32_t>(trained.size())});
}

// The trained elements of the last block, whose gradients are computed first.
int64_t trained_elements_of_head(const model::Model& model, const std::vector<bool>& trained) {
  int64_t elements = 0;
  for (const mesh::ParamId& id : model::named_parameters(model.blocks().back()->card())) elements += trained_elements(model, trained, id);
  return elements;
}

// The share of the model on the rank that has the most of it.
struct RankShare {
  int64_t elements = 0;
  int64_t keepers = 1;     // ranks that its state is sharded over (ZeRO)
  double activations = 1;  // activations of this rank, divided by those of one micro-batch on all pipeline stages
};

int64_t bytes_of(double bytes) { return static_cast<int64_t>(std::min(bytes, 1e15)); }  // larger than any memory, and far from overflow

// Activation offload: block inputs wait in host memory and are copied back one block ahead. Returns the largest such input in bytes, which
// is on the GPU beside that of the current block.
double leave_on_host(std::vector<parallel::ActivationBytes>& blocks, const std::vector<bool>& recomputed) {
  double ahead = 0;
  for (size_t i = 0; i < blocks.size(); ++i)
    if (i < recomputed.size() && recomputed[i]) ahead = std::max(ahead, std::exchange(blocks[i].input, 0));
  return ahead;
}

RankShare largest_share(const model::Model& model, const parallel::Plan& plan, int ranks) {
  RankShare largest;
  for (int rank = 0; rank < ranks; ++rank)
    largest.elements = std::max(largest.elements, parallel::model_shard(model, plan, rank).layout.elements);
  largest.keepers = plan.zero > 0 ? plan.mesh.extent("shard") * plan.mesh.extent("cp") : 1;
  // The first rank of a pipeline holds the activations of up to pp micro-batches.
  const int pp = plan.mesh.extent("pp");
  if (pp > 1) largest.activations = static_cast<double>(std::min<int64_t>(pp, plan.micro_batches)) / pp;
  return largest;
}

// Full copies of the weights for a reference model. With adapters only the adapters are copied, which is little.
int64_t reference_copies(const Settings& s) { return step_method(s).needs.reference && s.adapter.rank == 0 ? 1 : 0; }

// Copies of experts of a step, beside the experts that they lie with.
int64_t copied_expert_bytes(const Planned& p) {
  const parallel::ExpertLayoutOptions& options = p.settings.layout.expert;
  if (options.placement != parallel::ExpertPlacement::fssdp || !parallel::places_experts(p.plan)) return 0;
  return parallel::bytes_of_copies(parallel::copy_memory(*p.task.model, p.plan, options), options.memory_slots);
}

// The memory of the rank that holds most, from the plan and the model's cards.
Footprint footprint_of(const Planned& p, const RankShare& share, int ranks, bool on_gpu) {
  const Settings& s = p.settings;
  const parallel::Plan& plan = p.plan;
  const model::Model& model = *p.task.model;
  const StepNeeds& needs = step_method(s).needs;
  std::vector<parallel::ActivationBytes> blocks = kept_by_blocks(s, model, plan, p.batch.length, on_gpu);
  const std::vector<bool> again = p.rules.recompute_last ? p.rules.recompute : std::vector<bool>{};
  const double ahead = s.layout.recompute.inputs == parallel::RecomputeInputs::host ? leave_on_host(blocks, p.rules.recompute) : 0;
  const bool bf16 = s.train.precision == Precision::bf16, bf16_master = s.train.parameters == Precision::bf16;
  const int64_t gradient_bytes = s.train.gradients == Precision::bf16 ? 2 : 4;
  const double part = static_cast<double>(share.elements) / static_cast<double>(model.elements());
  const auto kept = [&](int64_t bytes, int from_zero) { return plan.zero >= from_zero ? bytes / share.keepers : bytes; };
  const auto of_part = [&](int64_t whole) { return static_cast<int64_t>(part * static_cast<double>(whole)); };
  Footprint f{.parameters = kept(share.elements * (bf16_master ? 2 : 4), bf16 && !bf16_master ? 1 : 3) +
                            (bf16 && !bf16_master ? kept(share.elements * 2, 3) : 0) +
                            kept(share.elements * reference_copies(s) * (bf16 ? 2 : 4), 3) + copied_expert_bytes(p),
              .gradients = kept(of_part(trained_elements(model, p.rules.trained)) * gradient_bytes, 2),
              .optimizer = kept(of_part(optimizer_bytes(s, model)), 1),
              .activations = bytes_of((parallel::peak_activation_bytes(blocks, again) + ahead) * share.activations),
              .program = on_gpu ? kContextBytes : kProgramBytes};
  if (needs.passes_at_once && plan.mesh.extent("pp") == 1) f.activations *= needs.passes_at_once(s);
  double largest_block = 0;
  for (const parallel::ActivationBytes& one : blocks) largest_block = std::max(largest_block, one.all);
  if (!needs.gradients)  // only one block's activations exist at a time
    f.gradients = f.optimizer = 0, f.activations = bytes_of(largest_block * share.activations);
  // The chunks of a bf16 gradient are summed in fp32 (mesh/chunked_gradients.h).
  const bool chunk_sums = loss_chunks_of(s, model, plan, p.batch.length, on_gpu) > 1 && gradient_bytes < 4;
  const int64_t of_head = trained_elements_of_head(model, p.rules.trained);
  if (chunk_sums) f.activations += 4 * of_head;
  const bool reuses_gradient_memory = on_gpu && ranks == 1 && needs.gradients && !s.train.cuda_graph;  // GradientReducer
  if (reuses_gradient_memory && plan.micro_batch >= s.train.global_batch) {
    f.gradients_with_activations = chunk_sums ? 0 : of_head * gradient_bytes;
    f.activations_with_gradients = bytes_of(largest_block);
  }
  return f;
}

// The tiers of every rank; empty: everything is on the device.
std::vector<OffloadPlan> offload_of(const Planned& p, int ranks) {
  std::vector<OffloadPlan> all;
  for (int rank = 0; rank < ranks && p.settings.layout.memory.swaps(); ++rank) {
    planner::StepRules rules = p.rules;
    if (!step_method(p.settings).needs.gradients) rules.trained.assign(rules.trained.size(), false);
    all.push_back(offload_plan(p.settings, *p.task.model, p.plan, rules, rank));
    check_offload(all.back(), p.settings.layout.memory);
  }
  return all;
}

// What stays in memory where tiers have the rest.
void leave_in_tiers(Footprint& f, const std::vector<OffloadPlan>& tiers, const parallel::MemoryOptions& memory, bool on_gpu) {
  if (tiers.empty()) return;
  f.parameters = f.gradients = f.optimizer = f.host = 0;
  for (const OffloadPlan& one : tiers) {
    const OffloadPlan::Bytes& device = one.of(memory::TierKind::device);
    f.parameters = std::max(f.parameters, device.parameters + one.gathered);
    f.gradients = std::max(f.gradients, device.gradients + one.device_working - one.gathered);
    f.optimizer = std::max(f.optimizer, device.optimizer);
    if (!on_gpu) f.host = std::max(f.host, host_bytes(one, memory));
  }
}

constexpr double kSecondsOfADay = 86'400;

// The tiers by rank, and what a step and a day write.
std::string tiers_in_words(const std::vector<OffloadPlan>& tiers, const parallel::MemoryOptions& memory, double compute_s) {
  std::string out = "tiers, by rank\n";
  int64_t read = 0, written = 0;
  double step_s = compute_s;
  for (size_t rank = 0; rank < tiers.size(); ++rank) {
    const OffloadPlan& one = tiers[rank];
    read += one.read_per_step, written += one.written_per_step;
    constexpr double kMiB = 1 << 20;
    double disk_s = 0;
    if (memory.disk_read_mib_s > 0) disk_s += static_cast<double>(one.read_per_step) / (memory.disk_read_mib_s * kMiB);
    if (memory.disk_write_mib_s > 0) disk_s += static_cast<double>(one.written_per_step) / (memory.disk_write_mib_s * kMiB);
    step_s = std::max(step_s, disk_s);
    constexpr size_t kRanksShown = 16;
    if (rank >= kRanksShown) continue;
    out += fmt::format("  {:<22} device {}, host {}, disk {}\n", rank, base::human_bytes(one.device_needed()),
                       base::human_bytes(host_bytes(one, memory)), base::human_bytes(disk_bytes(one, memory)));
  }
  if (read + written == 0) return out;
  out += fmt::format("  {:<22} read {}, written {} a step; at {:.3g} s a step {:.3g} TB written a day\n", "disk, all ranks",
                     base::human_bytes(read), base::human_bytes(written), step_s,
                     1e-12 * static_cast<double>(written) * kSecondsOfADay / step_s);
  return out;
}

// Seconds of a step's work at the peak of the device; nothing of the tiers.
double compute_seconds(const Planned& p, int ranks, const std::string& device) {
  const base::RealClock clock;
  const bool bf16 = p.settings.train.precision == Precision::bf16;
  const at::Device on = device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  const double tokens = static_cast<double>(p.settings.train.global_batch * p.batch.rows * p.batch.length) / ranks;
  return 3 * forward_flops_per_token(*p.task.model, p.batch.length) * tokens /
         kernels::peak_flops(on, bf16 ? at::kBFloat16 : at::kFloat, clock);
}

void add_line(std::string& out, std::string_view name, const std::string& value) { out += fmt::format("  {:<22} {}\n", name, value); }

std::string data_in_words(const Settings& s) {
  if (!s.data.sources.empty()) return fmt::format("a mixture of {} sources", s.data.sources.size());
  return s.data.path.empty() ? s.data.needs().built_in : s.data.path;
}

// The lines about model, data, layout and work per step.
std::string run_in_words(const Planned& p, const Start& start, int64_t keepers) {
  const Settings& s = p.settings;
  const parallel::Plan& plan = p.plan;
  const model::Model& model = *p.task.model;
  const StepNeeds& needs = step_method(s).needs;
  const int64_t tokens = s.train.global_batch * p.batch.rows * p.batch.length;
  const double work = (needs.forward_passes ? needs.forward_passes(s) : 3) * forward_flops_per_token(model, p.batch.length) *
                      static_cast<double>(tokens / std::max<int64_t>(1, model.positions()));
  std::string out = "dry run: nothing is trained or written\n";
  add_line(out, "model",
           fmt::format("{}, {} parameters in {} tensors", s.model.kind, base::human_count(static_cast<double>(model.elements())),
                       model.parameters().size()));
  add_line(out, "data", data_in_words(s));
  add_line(out, "run directory", start.out.string());
  add_line(
      out, "layout",
      fmt::format("{} on {}, {} thread{} a rank", mesh::to_string(plan.mesh), start.device, start.threads, start.threads == 1 ? "" : "s"));
  if (plan.mesh.extent("pp") > 1)
    add_line(
        out, "pipeline",
        fmt::format("{}, {} micro-batches, blocks of each stage {}", plan.schedule, plan.micro_batches, fmt::join(plan.stage_blocks, " ")));
  if (plan.mesh.extent("cp") > 1)
    add_line(out, "context", parallel::context_form(plan) + (p.context_reason.empty() ? "" : " (auto: " + p.context_reason + ")"));
  if (plan.zero > 0) add_line(out, "sharded", fmt::format("zero {} over {} ranks", plan.zero, keepers));
  add_line(out, "sync", plan.sync.at("dp"));
  const bool planned = s.layout.context.plan != parallel::ContextPlan::fixed;
  const bool by_epochs = s.train.epochs > 0;  // only the data says how many steps that is
  add_line(out, "steps",
           fmt::format("{} of {} samples ({}{} tokens), {}",
                       by_epochs ? fmt::format("{} epochs in steps", s.train.epochs) : fmt::format("{}", s.train.steps),
                       s.train.global_batch, planned ? "at most " : "", tokens,
                       planned ? fmt::format("passes of at most {} tokens a rank", s.layout.context.tokens_per_rank)
                               : fmt::format("micro-batches of {}", plan.micro_batch)));
  add_line(out, "work",
           fmt::format("{} FLOP a step{}", base::human_count(work),
                       by_epochs ? "" : fmt::format(", {} in all", base::human_count(work * static_cast<double>(s.train.steps)))));
  return out;
}

int64_t snapshot_bytes_of(const Planned& p) {
  const int64_t element_bytes = p.settings.train.parameters == Precision::bf16 ? 2 : 4;
  const int64_t optimizer = step_method(p.settings).needs.gradients ? optimizer_bytes(p.settings, *p.task.model) : 0;
  return p.task.model->elements() * element_bytes + optimizer;
}

int64_t snapshots_kept_of(const Settings& s) {
  if (s.train.epochs > 0) return s.snapshot.every > 0 ? s.snapshot.keep + 1 : 1;
  const int64_t every = s.snapshot.every, saved = every > 0
                                                      ? s.train.steps / every + (s.train.steps % every != 0 && s.snapshot.last ? 1 : 0)
                                                      : (s.snapshot.last ? 1 : 0);
  return saved <= s.snapshot.keep ? saved : s.snapshot.keep + 1;
}

// Suggests settings that need less memory.
std::string remedies(const Planned& p, int ranks, bool on_gpu) {
  const bool recomputes = p.settings.layout.recompute.mode != parallel::RecomputeMode::none;
  return fmt::format("{}{}{}a smaller model would", on_gpu || ranks == 1 ? "" : "fewer ranks (--nproc), ",
                     p.plan.micro_batch > 1 ? fmt::format("a smaller train.micro_batch = {}, ", p.plan.micro_batch / 2) : "",
                     !recomputes && step_method(p.settings).needs.gradients ? "recompute.mode = \"full\" or " : "");
}

}  // namespace

int64_t device_memory_bytes(const std::string& device) {
  if (device != "cuda") return base::machine_bytes();
  return kernels::can_use_cuda() ? kernels::total_memory_bytes(at::Device(at::kCUDA, 0)) : 0;
}

DryRun dry_run(base::Recipe recipe, const Start& start, int ranks, const DeviceMemory& memory) {
  const bool on_gpu = start.device == "cuda";
  const Planned p = planned(std::move(recipe), ranks, start.plan.get(), on_gpu);
  const data::DataOptions& data = p.settings.data;
  const bool names_files = !data.path.empty() || !data.sources.empty();
  const data::DataNeeds& needs = data.needs();
  if (names_files && (needs.tokens || needs.table) && !needs.retrieval) data::find_sources(data);  // refuses missing files
  const RankShare share = largest_share(*p.task.model, p.plan, ranks);
  Footprint f = footprint_of(p, share, ranks, on_gpu);
  const std::vector<OffloadPlan> tiers = offload_of(p, ranks);
  leave_in_tiers(f, tiers, p.settings.layout.memory, on_gpu);
  DryRun run{.text = run_in_words(p, start, share.keepers),
             .misfit = {},
             .snapshot_bytes = snapshot_bytes_of(p),
             .snapshots_kept = snapshots_kept_of(p.settings)};
  std::string& out = run.text;
  out += "memory of one rank\n";
  add_line(out, reference_copies(p.settings) > 0 ? "parameters, reference" : "parameters", base::human_bytes(f.parameters));
  add_line(out, "gradients",
           base::human_bytes(f.gradients) + (f.gradients_with_activations >= 0 ? ", in memory that activations have before" : ""));
  add_line(out, "optimizer", base::human_bytes(f.optimizer));
  add_line(out, "activations", base::human_bytes(f.activations));
  if (f.host > 0) add_line(out, "host tier", base::human_bytes(f.host));
  add_line(out, on_gpu ? "CUDA" : "program", base::human_bytes(f.program));
  add_line(out, "total", base::human_bytes(f.total()));
  if (!tiers.empty()) out += tiers_in_words(tiers, p.settings.layout.memory, compute_seconds(p, ranks, start.device));
  if (memory.bytes <= 0) return run;
  const int64_t here = (f.total() - f.program) * memory.ranks + f.program * memory.processes;
  const char* device = on_gpu ? "GPU" : "machine";
  add_line(out,
           !on_gpu             ? "all ranks"
           : memory.ranks == 1 ? "each rank"
                               : "ranks of a GPU",
           fmt::format("{} of this {}'s {}", base::human_bytes(here), device, base::human_bytes(memory.bytes)));
  if (here <= memory.bytes) return run;
  const std::string would = remedies(p, ranks, on_gpu);
  out += fmt::format("this does not fit: {}\n", would);
  run.misfit = fmt::format("this run needs about {} and this {} has {}: {}", base::human_bytes(here), device,
                           base::human_bytes(memory.bytes), would);
  return run;
}

std::string check_disk(const DryRun& run, const std::filesystem::path& out, int64_t free_bytes, bool refuses) {
  if (free_bytes < 0 || run.snapshots_kept == 0) return {};
  if (run.snapshot_bytes > free_bytes) {
    const std::string trouble =
        fmt::format("{}: a snapshot needs about {} and {} are free there: make room, or choose another disk with --out", out.string(),
                    base::human_bytes(run.snapshot_bytes), base::human_bytes(free_bytes));
    if (refuses) base::fail_input("{}; --allow-oversize trains all the same", trouble);
    return trouble;
  }
  const int64_t all = run.snapshot_bytes * run.snapshots_kept;
  if (all <= free_bytes) return {};
  return fmt::format("{}: {} snapshots at once (snapshot.keep and the one being written) need about {} and {} are free there", out.string(),
                     run.snapshots_kept, base::human_bytes(all), base::human_bytes(free_bytes));
}

}  // namespace cairn::train
