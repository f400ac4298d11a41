// Zeroth-order training with one byte per slope: train.method = "one_byte". sync/one_byte/replica.cpp has the equations. A machine m is a
// replica of the model: the ranks along tp that share it, at one place along dp, on one island. A step is a round t.
//
//   measure    s_k = (L(w + eps u_k) - L(w - eps u_k)) / (2 eps), k = 1 .. samples_per_round: two forward passes over the machine's share
//              along each random direction u_k
//   exchange   all-gather of the slopes s_k of the machines of this world, one byte each (train.one_byte.code); between remote islands, a
//              round of messages (sync/one_byte/island_rounds.cpp)
//   apply      w <- keep w - rate / W sum of s u over all machines and k. Every rank draws all directions from the shared seed, for the
//              elements that it holds, and runs the same arithmetic, so the weights stay bitwise identical.
//
// A round is in the log (rounds.bin) before it is applied. Every hash_every steps copies of the weights are compared by hash. One that
// differs from most is rebuilt from base and log.
//
// There is no gradient. The reported gradient norm is sqrt(mean s^2), because E[s^2] = |grad L|^2; the loss is the mean over all forward
// passes.
#include "train/steps/one_byte_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "parallel/pass.h"
#include "sync/message_rounds.h"
#include "train/job.h"
#include "train/steps/one_byte_history.h"

namespace cairn::train {
namespace {

constexpr uint32_t kMachinesOfIsland = 1 << 16;

// The value that most have; of several, that of the first who has it.
uint64_t most_frequent(const std::vector<uint64_t>& values) {
  std::map<uint64_t, int64_t> votes;
  for (const uint64_t value : values) ++votes[value];
  uint64_t found = values.front();
  for (const uint64_t value : values)
    if (votes[value] > votes[found]) found = value;
  return found;
}

// An island's message of a round: the learning rate, the hash of its weights in rounds that compare them, the messages of its machines.
struct IslandMessage {
  float rate = 0;
  uint64_t hash = 0;
  std::vector<sync::SlopeMessage> machines = {};
};

std::vector<std::byte> encode_island_message(const IslandMessage& message, bool with_hash) {
  std::vector<std::byte> bytes(sizeof(float) + (with_hash ? sizeof(uint64_t) : 0));
  std::memcpy(bytes.data(), &message.rate, sizeof(float));
  if (with_hash) std::memcpy(bytes.data() + sizeof(float), &message.hash, sizeof(uint64_t));
  for (const sync::SlopeMessage& one : message.machines) {
    const std::vector<std::byte> more = sync::encode_message(one);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

// A damaged message is refused as Error::Kind::corrupt_file.
IslandMessage decode_island_message(std::span<const std::byte> bytes, bool with_hash, sync::SlopeCode code) {
  IslandMessage message;
  const size_t head = sizeof(float) + (with_hash ? sizeof(uint64_t) : 0);
  if (bytes.size() < head) throw Error(Error::Kind::corrupt_file, "the message of an island is too short");
  std::memcpy(&message.rate, bytes.data(), sizeof(float));
  if (with_hash) std::memcpy(&message.hash, bytes.data() + sizeof(float), sizeof(uint64_t));
  for (bytes = bytes.subspan(head); !bytes.empty();) {
    const size_t size = sync::message_bytes(bytes, code);
    message.machines.push_back(sync::decode_message(bytes.first(size), code));
    bytes = bytes.subspan(size);
  }
  return message;
}

struct OneByteGroups {
  comm::Group& machines;     // the ranks that hold the same part of the model in the machines of this world
  comm::Group& model_group;  // the ranks of this rank's machine
  comm::Group& copies;       // the ranks that keep the same slices
};

class OneByteStep final : public Step {
 public:
  OneByteStep(const StepContext& context, OneByteGroups groups)
      : job_(context.job),
        options_(job_.config.settings.step_options<sync::OneByteOptions>()),
        run_(static_cast<uint64_t>(job_.config.settings.train.seed)),
        groups_(groups),
        island_(static_cast<uint32_t>(job_.config.plan.island)),
        plain_(make_step(in_turn(parallel::execute))),
        replica_(options_, run_, model_of(job_.engine, context.trained)),
        history_({.job = job_,
                  .replica = replica_,
                  .log = job_.config.writes ? job_.config.out / "rounds.bin" : std::filesystem::path(),
                  .load_start_weights = context.load_start_weights}) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override { return plain_->evaluate(engine, batch); }
  mesh::NamedTensors state() override { return history_.state(); }
  sync::StepMetrics metrics() override { return std::exchange(metrics_, {}); }

  int64_t begin(Engine& engine, const ResumePoint& from) override {
    islands_ = engine.sync->message_rounds();
    history_.begin(from, islands_ != nullptr);
    if (islands_) islands_->attach(history_.for_islands());
    return history_.rounds();
  }

  StepOutput run(Engine& engine, const StepInput& input) override {
    const auto round = static_cast<uint32_t>(input.step - 1);
    const Measured mine = measure(engine, input, round);
    const auto there = at::TensorOptions().dtype(at::kDouble).device(input.batch.ids.device());
    StepOutput output{.loss_sum = at::full({}, mine.mean_loss * mine.count * engine.loss_share, there),
                      .gradient_norm = at::zeros({}, there)};
    sync::RoundRecord record{{.round = round, .rate = static_cast<float>(input.learning_rate)}, gather_messages(mine, round)};
    if (compares_before(round)) record.manifest.hash = history_.trained_hash();
    if (islands_ && !exchange(record)) return output;  // there is no result here
    record.manifest.keep = static_cast<float>(1 - static_cast<double>(record.manifest.rate) * options_.weight_decay);
    sync::accept_messages(record);
    output.gradient_norm.fill_(root_mean_square(record));
    output.skipped = input.approve && !input.approve(output.loss_sum, output.gradient_norm);
    if (!output.skipped) {
      const auto traced = engine.trace->span("replay", "optimizer");
      history_.add(record);
    }
    history_.set_rounds(input.step);
    if (islands_) islands_->applied(input.step, sync::encode_record(record));
    if (input.step % options_.hash_every == 0) compare_copies(input.step);
    return output;
  }

 private:
  static sync::OneByteReplica::Model model_of(const Engine& engine, const std::vector<bool>& trained) {
    sync::OneByteReplica::Model model{engine.store->weights(), {}, trained, std::vector<sync::OneByteReplica::Piece>(trained.size())};
    for (size_t i = 0; i < trained.size(); ++i) {
      const model::Parameter& parameter = engine.model->parameters()[i];
      model.names.push_back(parameter.name);
      model.sharded.push_back({parameter.shape, engine.store->shard().parameters[i].local_shard});
    }
    for (const parallel::ParameterSlice& piece : engine.store->pieces())
      model.pieces[piece.parameter] = {piece.value, piece.elements.begin};
    model.barrier = engine.trained.barrier;
    return model;
  }

  uint32_t machine() const { return island_ * kMachinesOfIsland + static_cast<uint32_t>(groups_.machines.rank()); }
  // Whether machines state the hash of their weights before this round.
  bool compares_before(uint32_t round) const { return round > 0 && round % static_cast<uint32_t>(options_.hash_every) == 0; }

  // The slopes on this machine's share of the batch.
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
      // Passes without samples take part in the gathers of ZeRO 3.
      for (const data::BatchRange& part :
           data::micro_batches(input.batch.samples(), engine.micro_batching.samples, input.max_local_samples)) {
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
    const int64_t samples = options_.samples_per_round;
    for (int64_t k = 0; k < samples; ++k) {
      const sync::Slope slope = replica_.measure(loss, round, machine(), k);
      measured.slopes.push_back(slope.slope);
      measured.mean_loss += (slope.above + slope.below) / 2 / static_cast<double>(samples);
    }
    // The ranks of a machine must send the same: its first rank's.
    if (groups_.model_group.size() > 1)
      groups_.model_group
          .broadcast({measured.slopes.data(), samples, comm::Dtype::f32}, 0, {comm::Purpose::gradient, "slopes of this machine"})
          .wait_host();
    return measured;
  }

  // All-gathers the messages of all machines of this world, in their order.
  std::vector<sync::SlopeMessage> gather_messages(const Measured& measured, uint32_t round) {
    const base::Random rounding = base::Random(run_).for_purpose("rounding of slopes").for_index(machine()).for_index(round);
    sync::EncodedSlopes encoded = sync::encode_slopes(replica_.code(), measured.slopes, options_.unbiased ? &rounding : nullptr);
    std::vector<std::byte> mine = sync::encode_message({.run = run_,
                                                        .round = round,
                                                        .machine = machine(),
                                                        .slopes = static_cast<uint16_t>(measured.slopes.size()),
                                                        .mean_loss = static_cast<float>(measured.mean_loss),
                                                        .codes = std::move(encoded.bytes)});
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(groups_.machines.size()));
    groups_.machines
        .all_gather({all.data(), static_cast<int64_t>(all.size()), comm::Dtype::u8},
                    {mine.data(), static_cast<int64_t>(mine.size()), comm::Dtype::u8}, {comm::Purpose::gradient, "slopes"})
        .wait_host();
    std::vector<sync::SlopeMessage> messages;
    for (size_t i = 0; i < all.size(); i += mine.size())
      messages.push_back(sync::decode_message(std::span(all).subspan(i, mine.size()), replica_.code()));
    metrics_ = {{"slopes_clipped", static_cast<double>(encoded.clipped)}, {"slopes_not_finite", static_cast<double>(encoded.not_finite)}};
    return messages;
  }

  // Exchanges messages with the other islands. The record then has those that count. False: there is no result here.
  bool exchange(sync::RoundRecord& record) {
    const uint32_t round = record.manifest.round;
    const bool hashes = compares_before(round);
    const uint64_t mine = record.manifest.hash;
    const auto outcome = islands_->exchange(static_cast<int64_t>(round) + 1,
                                            encode_island_message({record.manifest.rate, mine, std::move(record.messages)}, hashes));
    if (!outcome.decided) return false;
    record.messages.clear();
    record.manifest.epoch = static_cast<uint32_t>(outcome.epoch);
    std::vector<uint64_t> told;
    for (size_t island = 0; island < outcome.messages.size(); ++island) {
      if (outcome.messages[island].empty()) continue;
      try {
        IslandMessage message = decode_island_message(outcome.messages[island], hashes, replica_.code());
        for (const sync::SlopeMessage& one : message.machines)
          if (one.run != run_ || one.round != round || one.machine / kMachinesOfIsland != island)
            throw Error(Error::Kind::corrupt_file, fmt::format("machine {} sends slopes of another run or round", one.machine));
        if (record.messages.empty()) record.manifest.rate = message.rate;
        told.push_back(message.hash);
        for (sync::SlopeMessage& one : message.machines) record.messages.push_back(std::move(one));
      } catch (const Error& error) {  // all islands have the same bytes and leave them out
        if (error.kind() != Error::Kind::corrupt_file) throw;
        warn(fmt::format("round {}: the message of island {} is left out: {}", round, island, error.what()));
      }
    }
    if (!hashes || told.empty()) return true;
    record.manifest.hash = most_frequent(told);
    if (record.manifest.hash != mine) repair(static_cast<int64_t>(round), record.manifest.hash);
    return true;
  }

  void warn(const std::string& what) const {
    if (job_.engine.step_group->rank() == 0) job_.engine.step_group->world().log().warn("{}", what);
  }

  // The weights of this island differ from those of most islands: they are rebuilt, and must then have the hash that most have.
  void repair(int64_t rounds, uint64_t right) {
    const std::string differed = history_.rebuild();
    warn(fmt::format("round {}: the weights differed from those of most islands, first in {}: rebuilt from base and log", rounds,
                     differed.empty() ? "another rank's part" : differed));
    if (history_.trained_hash() != right)
      throw Error(Error::Kind::broken_invariant, fmt::format("round {}: the log gives other weights here than on most islands", rounds));
    metrics_.emplace_back("repaired", 1);
  }

  // Compares the copies of the weights in this world. If one differs from most, all ranks rebuild their weights.
  void compare_copies(int64_t step) {
    int64_t mine = static_cast<int64_t>(replica_.hash());
    std::vector<uint64_t> all(static_cast<size_t>(groups_.copies.size()));
    groups_.copies
        .all_gather({all.data(), static_cast<int64_t>(all.size()), comm::Dtype::i64}, {&mine, 1, comm::Dtype::i64},
                    {comm::Purpose::control, "hashes of weights"})
        .wait_host();
    const uint64_t right = most_frequent(all);
    const bool differs = static_cast<uint64_t>(mine) != right;
    int64_t any = differs ? 1 : 0;
    job_.engine.step_group->all_reduce({&any, 1, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "weights differ"})
        .wait_host();
    if (any == 0) return;
    const std::string changed = history_.rebuild();
    if (differs)
      job_.engine.step_group->world().log().warn("step {}: the weights of rank {} differed from those of most ranks, first in {}: rebuilt",
                                                 step, job_.engine.step_group->world().rank(), changed);
    if (replica_.hash() != right)
      throw Error(Error::Kind::broken_invariant,
                  fmt::format("step {}: the log gives other weights than most ranks have: resume from the last snapshot (--resume)", step));
    metrics_.emplace_back("repaired", 1);
  }

  // The mean square of slopes along random directions is the squared gradient norm, in expectation.
  double root_mean_square(const sync::RoundRecord& record) {
    double squares = 0, count = 0;
    for (const sync::SlopeMessage& message : record.messages)
      for (const float slope : sync::decode_slopes(replica_.code(), message.codes, message.slopes))
        squares += static_cast<double>(slope) * slope, ++count;
    metrics_.emplace_back("machines", static_cast<double>(record.messages.size()));
    metrics_.emplace_back("slopes", count);
    return std::sqrt(squares / std::max(count, 1.0));
  }

  Job& job_;
  const sync::OneByteOptions options_;
  const uint64_t run_;
  OneByteGroups groups_;
  const uint32_t island_;
  std::unique_ptr<Step> plain_;
  sync::OneByteReplica replica_;
  OneByteHistory history_;
  sync::MessageRounds* islands_ = nullptr;  // null: all machines are in this world
  sync::StepMetrics metrics_;
};

std::unique_ptr<Step> make_one_byte(const StepContext& context) {
  const parallel::Plan& plan = context.job.config.plan;
  const auto along = [&](const std::vector<std::string>& axes, std::string_view name) -> comm::Group& {
    return context.world.group(plan.mesh.peers_along(context.world.rank(), axes), name);
  };
  return std::make_unique<OneByteStep>(context, OneByteGroups{along({"dp", "shard"}, "machines"), along({"tp"}, "machine"),
                                                              along(parallel::replicating_axes(plan), "copies")});
}

int machines_of(const parallel::Plan& plan) { return plan.mesh.extent("dp") * plan.mesh.extent("shard") * plan.islands; }

void check_one_byte(const Settings& settings, const parallel::Plan& plan) {
  if (step_method(settings).make != make_one_byte) return;
  sync::check(settings.step_options<sync::OneByteOptions>());
  if (settings.train.global_batch < machines_of(plan))
    base::fail_input("train.global_batch = {}: each of {} machines needs a sample with train.method = one_byte",
                     settings.train.global_batch, machines_of(plan));
  if (plan.islands > 1 && settings.train.on_bad_step != OnBadStep::stop)
    base::fail_input("train.on_bad_step = {}: an island cannot leave out a round that the others apply: use stop",
                     name_of(settings.train.on_bad_step));
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
      "Zeroth-order training (train.method = \"one_byte\"): machines exchange slopes of the loss along random directions, one byte each. "
      "It "
      "needs small learning rates: 1e-6 for full models, 1e-4 for adapters.",
      {{"samples_per_round", &O::samples_per_round, "Random directions that each machine measures in a step.", base::between(1, 65535)},
       {"eps", &O::eps, "How far the weights are perturbed to both sides: 1e-3 for full models, 1e-2 for adapters.", base::more_than(0)},
       {"noise", &O::noise, "The distribution of a direction's elements: normal, or rademacher (1 and -1).", sync::kNoiseNames},
       {"code", &O::code, "The encoding of a slope in messages: log8 is one byte; fp32 and sign are for comparison.",
        sync::kSlopeCodeNames},
       {"unbiased", &O::unbiased, "Round log8 stochastically, without bias, instead of to the nearest."},
       {"scale", &O::scale, "The divisor of the sum of slopes: their number (mean), or its square root (sqrt).", sync::kSlopeScaleNames},
       {"weight_decay", &O::weight_decay, "Weight decay of matrices, multiplied by the learning rate.", base::at_least(0)},
       {"hash_every", &O::hash_every, "Steps between two comparisons of the machines' weights, by hash.", base::at_least(1)}}};
}

StepMethod one_byte_method() {
  constexpr std::string_view kOnePass = "a machine evaluates the loss of its samples in one pass over the model: use mesh.tp or mesh.dp";
  return {
      .name = "one_byte",
      .help = "forward passes alone, a byte per slope: train.one_byte",
      .needs = {.gradients = false,
                .messages = true,
                .announces_writes = true,
                .limits = own_passes_limits(
                    {{Feature::cp, kOnePass},
                     {Feature::pp, kOnePass},
                     {Feature::ep, kOnePass},
                     {Feature::mesh_island, "machines in one run are ranks along dp: use mesh.dp, or islands that are started separately"},
                     {Feature::dropout, "both evaluations of a slope must see the same network: set it to 0"},
                     {Feature::running_statistics, "batch statistics are no function of the weights: set it to false"}}),
                .forward_passes = one_byte_forward_passes},
      .make = make_one_byte,
      .options = StepOptions::from(one_byte_schema),
      .check = check_one_byte};
}

}  // namespace cairn::train
