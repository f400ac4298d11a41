#include "train/dry_run.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/memory_tags.h"
#include "base/text.h"
#include "data/corpus/source.h"
#include "kernels/device.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/layout/model_shard.h"
#include "train/loss_chunks.h"
#include "train/planned.h"

namespace cairn::train {
namespace {

constexpr int64_t kProgramBytes = int64_t{150} << 20;  // a process with libtorch loaded and nothing done yet: measured 120 to 150 MB
constexpr int64_t kContextBytes = int64_t{700} << 20;  // what CUDA and its libraries take of a GPU: measured 0.61 to 0.68 GiB on an H200

int64_t trained_elements(const model::Model& model, const std::vector<bool>& trained, const mesh::ParamId& of) {
  int64_t elements = 0;
  for (auto i = static_cast<size_t>(of.first); i < static_cast<size_t>(of.first + of.count); ++i)
    if (trained[i]) elements += model.parameters()[i].elements();
  return elements;
}

int64_t trained_elements(const model::Model& model, const std::vector<bool>& trained) {
  return trained_elements(model, trained, {0, static_cast<int32_t>(trained.size())});
}

// Of the last block, whose gradients come first.
int64_t trained_elements_of_head(const model::Model& model, const std::vector<bool>& trained) {
  int64_t elements = 0;
  for (const mesh::ParamId& id : model::named_parameters(model.blocks().back()->card())) elements += trained_elements(model, trained, id);
  return elements;
}

double forward_flops_per_token(const model::Model& model, int64_t length) {
  double flops = 0;
  for (const auto& block : model.blocks())
    for (const model::BlockOp& operation : block->card().operations)
      flops += operation.flops_per_token + operation.flops_per_pair * static_cast<double>(length + 1) / 2;  // half of all pairs are seen
  return flops;
}

// What the rank that has most of a model has of it.
struct RankShare {
  int64_t elements = 0;
  int64_t keepers = 1;     // ranks that share its state out
  double activations = 1;  // of those of one micro-batch on all stages of a pipeline
};

int64_t bytes_of(double bytes) { return static_cast<int64_t>(std::min(bytes, 1e15)); }  // more than anybody has, and far from overflow

// Inputs that wait in host memory come back one block ahead of their need: beside that of the block at work one more is on the GPU, of at
// most so many bytes.
double leave_on_host(std::vector<parallel::ActivationBytes>& blocks, const std::vector<bool>& recomputed) {
  double ahead = 0;
  for (size_t i = 0; i < blocks.size(); ++i)
    if (recomputed[i]) ahead = std::max(ahead, std::exchange(blocks[i].input, 0));
  return ahead;
}

// Of all ranks on this machine.
struct Room {
  std::string name;
  int64_t bytes = 0;  // 0: not known here
};

// Ranks that use GPUs have one each, where there are enough of them.
Room room_of(const std::string& device) {
  if (device != "cuda") return {"machine", base::machine_bytes()};
  return {"GPU", kernels::can_use_cuda() ? kernels::total_memory_bytes(at::Device(at::kCUDA, 0)) : 0};
}

RankShare largest_share(const model::Model& model, const parallel::Plan& plan, int ranks) {
  RankShare largest;
  for (int rank = 0; rank < ranks; ++rank)
    largest.elements = std::max(largest.elements, parallel::model_shard(model, plan, rank).layout.elements);
  largest.keepers = plan.zero > 0 ? plan.mesh.extent("shard") * plan.mesh.extent("cp") : 1;
  // A pipeline's first rank has as many micro-batches under way as there are ranks along it.
  const int pp = plan.mesh.extent("pp");
  if (pp > 1) largest.activations = static_cast<double>(std::min<int64_t>(pp, plan.micro_batches)) / pp;
  return largest;
}

}  // namespace

std::string dry_run(base::Recipe recipe, const Start& start, int ranks) {
  const bool on_gpu = start.device == "cuda";
  const Planned p = planned(std::move(recipe), ranks, start.plan.get(), on_gpu);
  const Settings& s = p.settings;
  const parallel::Plan& plan = p.plan;
  const model::BuiltModel& task = p.task;
  if (!s.data.path.empty() || !s.data.sources.empty()) data::find_sources(s.data);  // refuses what is not there
  const int64_t length = p.batch.length;
  const double flops = forward_flops_per_token(*task.model, length);
  std::vector<parallel::ActivationBytes> blocks = kept_by_blocks(s, *task.model, plan, length, on_gpu);
  const std::vector<bool> again = p.rules.recompute_last ? p.rules.recompute : std::vector<bool>{};
  const double ahead = s.layout.recompute.inputs == "host" ? leave_on_host(blocks, p.rules.recompute) : 0;
  const bool pairs = s.data.kind == "preference";
  const int64_t rows = p.batch.rows;
  const int64_t copies = pairs && s.lora.rank == 0 ? 2 : 1;  // the reference model's; adapters are little
  const bool by_slopes = s.train.method == "one_byte";
  const double passes = by_slopes ? 2 * static_cast<double>(s.one_byte.samples_per_round)  // a look on either side, along each direction
                        : pairs   ? 4
                                  : 3;  // forward, two gradients, and the reference model's forward
  const int64_t elements = task.model->elements(), tokens = s.train.global_batch * rows * length;
  const bool low = s.train.precision == "bf16", kept_low = s.train.parameters == "bf16";
  const int64_t gradient_bytes = s.train.gradients == "bf16" ? 2 : 4;
  const RankShare share = largest_share(*task.model, plan, ranks);
  const double part = static_cast<double>(share.elements) / static_cast<double>(elements);
  const auto kept = [&](int64_t bytes, int from_zero) { return plan.zero >= from_zero ? bytes / share.keepers : bytes; };
  Footprint f{.parameters = kept(share.elements * (kept_low ? 2 : 4), low && !kept_low ? 1 : 3) +
                            (low && !kept_low ? kept(share.elements * 2, 3) : 0) + share.elements * (copies - 1) * (low ? 2 : 4),
              .gradients = kept(
                  static_cast<int64_t>(part * static_cast<double>(trained_elements(*task.model, p.rules.trained))) * gradient_bytes, 2),
              .optimizer = kept(static_cast<int64_t>(part * static_cast<double>(optimizer_bytes(s, *task.model))), 1),
              .activations = bytes_of((parallel::peak_activation_bytes(blocks, again) + ahead) * share.activations),
              .program = on_gpu ? kContextBytes : kProgramBytes};
  double largest_block = 0;
  for (const parallel::ActivationBytes& one : blocks) largest_block = std::max(largest_block, one.all);
  if (by_slopes)
    f.gradients = f.optimizer = 0, f.activations = bytes_of(largest_block * share.activations);  // one block at work, nothing kept
  // Parts of a gradient that is kept in less add up in fp32 (mesh/chunked_gradients.h).
  const bool sums_apart = loss_chunks_of(s, *task.model, plan, length, on_gpu) > 1 && gradient_bytes < 4;
  const int64_t of_head = trained_elements_of_head(*task.model, p.rules.trained);
  if (sums_apart) f.activations += 4 * of_head;
  if (on_gpu && ranks == 1 && !by_slopes && !s.train.cuda_graph &&
      plan.micro_batch >= s.train.global_batch) {  // as build() has it: GradientReducer, reuse_memory
    f.gradients_with_activations = sums_apart ? 0 : of_head * gradient_bytes;
    f.activations_with_gradients = bytes_of(largest_block);
  }
  const Room room = room_of(start.device);
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) { out += fmt::format("  {:<22} {}\n", name, value); };
  out += "dry run: nothing is trained or written\n";
  line("model", fmt::format("{}, {} parameters in {} tensors", s.model.kind, base::human_count(static_cast<double>(elements)),
                            task.model->parameters().size()));
  line("data", s.data.kind == "spirals"  ? "the built-in spirals"
               : !s.data.sources.empty() ? fmt::format("a mixture of {} sources", s.data.sources.size())
               : s.data.path.empty()     ? "the built-in stories"
                                         : s.data.path);
  line("run directory", start.out.string());
  line("layout",
       fmt::format("{} on {}, {} thread{} a rank", mesh::to_string(plan.mesh), start.device, start.threads, start.threads == 1 ? "" : "s"));
  if (plan.mesh.extent("pp") > 1)
    line("pipeline", fmt::format("{}, {} micro-batches, blocks of each stage {}", plan.schedule, plan.micro_batches,
                                 fmt::join(plan.stage_blocks, " ")));
  if (plan.zero > 0) line("shared out", fmt::format("zero {} over {} ranks", plan.zero, share.keepers));
  line("sync", plan.sync.at("dp"));
  line("steps",
       fmt::format("{} of {} samples ({} tokens), micro-batches of {}", s.train.steps, s.train.global_batch, tokens, plan.micro_batch));
  line("work", fmt::format("{} FLOP a step, {} in all", base::human_count(passes * flops * static_cast<double>(tokens)),
                           base::human_count(passes * flops * static_cast<double>(tokens) * static_cast<double>(s.train.steps))));
  out += "memory of one rank\n";
  line(copies == 2 ? "parameters, reference" : "parameters", base::human_bytes(f.parameters));
  line("gradients", base::human_bytes(f.gradients) + (f.gradients_with_activations >= 0 ? ", in memory that activations have before" : ""));
  line("optimizer", base::human_bytes(f.optimizer));
  line("activations", base::human_bytes(f.activations));
  line(on_gpu ? "CUDA" : "program", base::human_bytes(f.program));
  line("total", base::human_bytes(f.total()));
  const int64_t here = f.total() * (on_gpu ? 1 : ranks);
  if (room.bytes > 0)
    line(on_gpu ? "each rank" : "all ranks",
         fmt::format("{} of this {}'s {}", base::human_bytes(here), room.name, base::human_bytes(room.bytes)));
  if (room.bytes > 0 && here > room.bytes)
    out += fmt::format("this does not fit: {}{}{}a smaller model would\n", on_gpu || ranks == 1 ? "" : "fewer ranks (--nproc), ",
                       plan.micro_batch > 1 ? fmt::format("a smaller train.micro_batch = {}, ", plan.micro_batch / 2) : "",
                       s.layout.recompute.mode == "none" && !by_slopes ? "recompute.mode = \"full\" or " : "");
  return out;
}

}  // namespace cairn::train
