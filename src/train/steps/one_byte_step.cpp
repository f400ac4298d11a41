// Zeroth-order training with one byte per slope: train.method = "one_byte". sync/one_byte/replica.cpp has the equations; the ranks along dp
// are its machines m, and a step is a round t.
//
//   measure    s_k = (L(w + eps u_k) - L(w - eps u_k)) / (2 eps), k = 1 .. samples_per_round: two forward passes over this rank's share
//              along each random direction u_k
//   exchange   all-gather of the slopes s_k of all ranks, one byte each (train.one_byte.code)
//   apply      w <- keep w - rate / W sum of s u over all ranks and k. Every rank draws all directions from the shared seed and runs the
//              same arithmetic, so the weights stay bitwise identical. Every hash_every steps ranks compare a hash of them.
//
// There is no gradient. The reported gradient norm is sqrt(mean s^2), because E[s^2] = |grad L|^2; the loss is the mean over all forward
// passes. Rounds are appended to rounds.bin, from which sync/one_byte can rebuild the weights.
#include "train/steps/one_byte_step.h"

#include <cmath>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "parallel/pass.h"
#include "train/job.h"

namespace cairn::train {
namespace {

class OneByteStep final : public Step {
 public:
  OneByteStep(Engine& engine, OneByteParts parts)
      : parts_(std::move(parts)),
        plain_(make_step(in_turn(parallel::execute))),
        replica_(parts_.options, parts_.run, model_of(engine, parts_.trained)) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override { return plain_->evaluate(engine, batch); }

  StepOutput run(Engine& engine, const StepInput& input) override {
    const auto round = static_cast<uint32_t>(input.step - 1);
    const Measured mine = measure(engine, input, round);
    sync::RoundRecord record{{.round = round, .rate = static_cast<float>(input.learning_rate)}, tell(mine, round)};
    record.manifest.keep = static_cast<float>(1 - input.learning_rate * parts_.options.weight_decay);
    double squares = 0, count = 0;
    for (const sync::SlopeMessage& message : record.messages) {
      record.manifest.accepted.push_back({message.machine, sync::crc_of(sync::encode_message(message))});
      record.manifest.members.push_back(message.machine);
      for (const float slope : sync::decode_slopes(replica_.code(), message.codes, message.slopes))
        squares += static_cast<double>(slope) * slope, ++count;
    }
    // The mean square of slopes along random directions is the squared gradient norm, in expectation.
    const auto there = at::TensorOptions().dtype(at::kDouble).device(input.batch.ids.device());
    StepOutput output{.loss_sum = at::full({}, mine.mean_loss * mine.count, there),
                      .gradient_norm = at::full({}, std::sqrt(squares / std::max(count, 1.0)), there)};
    output.skipped = input.approve && !input.approve(output.loss_sum, output.gradient_norm);
    if (!output.skipped) {
      const auto traced = engine.trace->span("replay", "optimizer");
      replica_.apply(record);
      engine.store->updated();
      keep(record);
    }
    if (input.step % parts_.options.hash_every == 0) compare(input.step);
    return output;
  }

 private:
  static sync::OneByteReplica::Model model_of(const Engine& engine, const std::vector<bool>& trained) {
    sync::OneByteReplica::Model model{engine.store->weights(), {}, trained, std::vector<at::Tensor>(trained.size())};
    for (const model::Parameter& parameter : engine.model->parameters()) model.names.push_back(parameter.name);
    for (const parallel::ParameterSlice& piece : engine.store->pieces())
      model.kept[piece.parameter] = piece.value.view(engine.model->parameters()[piece.parameter].shape);
    return model;
  }

  // The slopes on this rank's share of the batch.
  struct Measured {
    std::vector<float> slopes = {};
    double mean_loss = 0;  // of a target, over all forward passes
    double count = 0;      // of targets
  };

  Measured measure(Engine& engine, const StepInput& input, uint32_t round) const {
    const auto traced = engine.trace->span("slopes", "forward");
    Measured measured;
    double& count = measured.count;
    const sync::LossAt loss = [&](const model::Weights& at, const sync::BatchKey&) {
      double sum = 0;
      count = 0;
      for (const data::BatchRange& part :
           data::micro_batches(input.batch.samples(), engine.micro_batching.samples, input.max_local_samples)) {
        if (part.count == 0) continue;
        const mesh::Batch batch = mesh::slice(input.batch, part.first, part.first + part.count);
        const model::Losses losses = parallel::execute({.model = *engine.model,
                                                        .at = at,
                                                        .buffers = engine.buffers,
                                                        .axes = engine.axes,
                                                        .batch = batch,
                                                        .objective = *engine.objective,
                                                        .trace = engine.trace,
                                                        .memory = engine.memory});
        sum += losses.sum.item<double>(), count += losses.count.item<double>();
      }
      return sum / count;
    };
    const int64_t samples = parts_.options.samples_per_round;
    for (int64_t k = 0; k < samples; ++k) {
      const sync::Slope slope = replica_.measure(loss, round, static_cast<uint32_t>(parts_.machines.rank()), k);
      measured.slopes.push_back(slope.slope);
      measured.mean_loss += (slope.above + slope.below) / 2 / static_cast<double>(samples);
    }
    return measured;
  }

  // All-gathers the messages of all ranks, in the order of ranks.
  std::vector<sync::SlopeMessage> tell(const Measured& measured, uint32_t round) {
    const auto rank = static_cast<uint32_t>(parts_.machines.rank());
    const base::Random rounding = base::Random(parts_.run).for_purpose("rounding of slopes").for_index(rank).for_index(round);
    std::vector<std::byte> mine = sync::encode_message(
        {.run = parts_.run,
         .round = round,
         .machine = rank,
         .slopes = static_cast<uint16_t>(measured.slopes.size()),
         .mean_loss = static_cast<float>(measured.mean_loss),
         .codes = sync::encode_slopes(replica_.code(), measured.slopes, parts_.options.unbiased ? &rounding : nullptr).bytes});
    const auto size = static_cast<int64_t>(mine.size());
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(parts_.machines.size()));
    parts_.machines
        .all_gather({all.data(), static_cast<int64_t>(all.size()), comm::Dtype::u8}, {mine.data(), size, comm::Dtype::u8},
                    {comm::Purpose::gradient, "slopes"})
        .wait_host();
    std::vector<sync::SlopeMessage> messages;
    for (size_t i = 0; i < all.size(); i += mine.size())
      messages.push_back(sync::decode_message(std::span(all).subspan(i, mine.size()), replica_.code()));
    return messages;
  }

  // Appends a round to the log. The first call removes later rounds of an interrupted run, which this run computes anew.
  void keep(const sync::RoundRecord& record) {
    if (parts_.log.empty()) return;
    std::vector<std::byte> bytes;
    const bool first = !std::exchange(kept_before_, true);
    if (first && base::path_exists(parts_.log)) {
      const std::string text = base::read_file(parts_.log, int64_t{1} << 32);
      const auto before = sync::log_before(base::as_bytes(text), record.manifest.round, replica_.code());
      bytes.assign(before.begin(), before.end());
    }
    sync::append_record(record, bytes);
    std::ofstream file(parts_.log, std::ios::binary | (first ? std::ios::trunc : std::ios::app));
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw Error(Error::Kind::disk, fmt::format("{}: a round could not be appended", parts_.log.string()));
  }

  void compare(int64_t step) {
    int64_t mine = static_cast<int64_t>(replica_.hash());
    std::vector<int64_t> all(static_cast<size_t>(parts_.machines.size()));
    parts_.machines
        .all_gather({all.data(), static_cast<int64_t>(all.size()), comm::Dtype::i64}, {&mine, 1, comm::Dtype::i64},
                    {comm::Purpose::control, "hashes of weights"})
        .wait_host();
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i] != all[0])
        throw Error(Error::Kind::broken_invariant,
                    fmt::format("step {}: the weights of rank {} differ from those of rank {}: resume from the last snapshot (--resume)",
                                step, parts_.machines.ranks()[i], parts_.machines.ranks()[0]));
  }

  OneByteParts parts_;
  std::unique_ptr<Step> plain_;
  sync::OneByteReplica replica_;
  bool kept_before_ = false;
};

std::unique_ptr<Step> make_one_byte(const StepContext& context) {
  Job& job = context.job;
  const RunConfig& config = job.config;
  return make_one_byte_step(job.engine, {.options = config.settings.step_options<sync::OneByteOptions>(),
                                         .run = static_cast<uint64_t>(config.settings.train.seed),
                                         .machines = context.world.group(config.plan.mesh.peers(context.world.rank(), "dp")),
                                         .trained = context.trained,
                                         .log = config.writes ? config.out / "rounds.bin" : std::filesystem::path()});
}

void check_one_byte(const Settings& settings, const parallel::Plan& plan) {
  if (step_method(settings).make != make_one_byte) return;
  sync::check(settings.step_options<sync::OneByteOptions>());
  if (settings.train.global_batch < plan.mesh.size())
    base::fail_input("train.global_batch = {}: each of {} ranks needs a sample with train.method = one_byte", settings.train.global_batch,
                     plan.mesh.size());
}

// Two forward passes along each direction.
double one_byte_forward_passes(const Settings& settings) {
  return 2 * static_cast<double>(settings.step_options<sync::OneByteOptions>().samples_per_round);
}

}  // namespace

base::Schema<sync::OneByteOptions> one_byte_schema() {
  using O = sync::OneByteOptions;
  return {
      "train.one_byte",
      "Zeroth-order training (train.method = \"one_byte\"): ranks exchange slopes of the loss along random directions, one byte each. It "
      "needs small learning rates: 1e-6 for full models, 1e-4 for adapters.",
      {{"samples_per_round", &O::samples_per_round, "Random directions that each rank measures in a step.", base::between(1, 65535)},
       {"eps", &O::eps, "How far the weights are perturbed to both sides: 1e-3 for full models, 1e-2 for adapters.", base::more_than(0)},
       {"noise", &O::noise, "The distribution of a direction's elements: normal, or rademacher (1 and -1).", sync::kNoiseNames},
       {"code", &O::code, "The encoding of a slope in messages: log8 is one byte; fp32 and sign are for comparison.",
        sync::kSlopeCodeNames},
       {"unbiased", &O::unbiased, "Round log8 stochastically, without bias, instead of to the nearest."},
       {"scale", &O::scale, "The divisor of the sum of slopes: their number (mean), or its square root (sqrt).", sync::kSlopeScaleNames},
       {"weight_decay", &O::weight_decay, "Weight decay of matrices, multiplied by the learning rate.", base::at_least(0)},
       {"hash_every", &O::hash_every, "Steps between two comparisons of the ranks' weights, by hash.", base::at_least(1)}}};
}

StepMethod one_byte_method() {
  constexpr std::string_view kWholeParameters = "each rank perturbs whole parameters: use mesh.dp";
  return {.name = "one_byte",
          .help = "forward passes alone, a byte per slope: train.one_byte",
          .needs = {.gradients = false,
                    .limits = own_passes_limits(
                        {{Feature::zero, "there is no optimizer state to shard: leave it out"},
                         {Feature::tp, kWholeParameters},
                         {Feature::cp, kWholeParameters},
                         {Feature::pp, kWholeParameters},
                         {Feature::ep, kWholeParameters},
                         {Feature::mesh_island, kWholeParameters},
                         {Feature::remote_islands, "ranks exchange slopes at every step: use mesh.dp in one world"},
                         {Feature::dropout, "both evaluations of a slope must see the same network: set it to 0"},
                         {Feature::running_statistics, "batch statistics are no function of the weights: set it to false"},
                         {Feature::bf16, "a slope is the difference of two nearly equal losses: use fp32"}}),
                    .forward_passes = one_byte_forward_passes},
          .make = make_one_byte,
          .options = StepOptions::from(one_byte_schema),
          .check = check_one_byte};
}

std::unique_ptr<Step> make_one_byte_step(Engine& engine, OneByteParts parts) {
  return std::make_unique<OneByteStep>(engine, std::move(parts));
}

}  // namespace cairn::train
