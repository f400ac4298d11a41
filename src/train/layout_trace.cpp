#include "train/layout_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/log.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/trainable.h"
#include "parallel/layout/expert_split.h"
#include "train/build.h"
#include "train/report/gather_texts.h"
#include "train/state/full_state.h"
#include "train/state/tensor_checksum.h"
#include "train/take_step.h"

namespace cairn::train {
namespace {

// Ranks that hold the same part of a parameter must have bitwise identical gradients. Returns the parameters whose gradients differ.
std::vector<std::string> unequal_copies(comm::World& world, const Job& job) {
  std::vector<std::string> found;
  if (job.config.plan.zero > 0) return found;  // gradients are sharded: there are no copies
  const parallel::ModelShard& share = job.engine.store->shard();
  for (const parallel::ParameterSlice& piece : job.engine.store->pieces()) {
    const std::vector<int>& copies = share.parameters[piece.parameter].copies;
    if (copies.size() < 2 || !piece.gradient.defined()) continue;
    comm::Group& group = world.group(copies, "copies");
    const auto there = mesh::hold(job.engine.store->swapper(), piece.gradient, mesh::TensorSwapper::Access::read);
    auto mine = static_cast<int64_t>(checksum_of(piece.gradient));
    std::vector<int64_t> all(copies.size());
    group.all_gather({all.data(), group.size(), comm::Dtype::i64}, {&mine, 1, comm::Dtype::i64}, {comm::Purpose::control, piece.name})
        .wait_host();
    for (size_t i = 1; i < all.size(); ++i)
      if (all[i] != all[0]) {
        found.push_back(fmt::format("{} (ranks {} and {})", piece.name, copies[0], copies[i]));
        break;
      }
  }
  return found;
}

// The findings of all ranks, without duplicates, on every rank.
std::vector<std::string> told_to_all(comm::World& world, const std::vector<std::string>& own) {
  std::vector<std::string> lines;
  for (const std::string& text : gather_texts(world.everyone(), fmt::format("{}", fmt::join(own, "\n")), "copies"))
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
      begin = end + 1;
    }
  return lines;
}

std::vector<RankMemory> memory_of_all(comm::World& world, Job& job) {
  std::array<int64_t, 6> mine{job.engine.store->parameter_bytes(),
                              job.engine.store->gradient_bytes(),
                              job.instruments.memory->of(base::MemoryUse::optimizer).now,
                              job.engine.store->reducer().peak_bytes(),
                              job.engine.store->sharded_weights().peak_gathered_bytes(),
                              job.instruments.memory->of(base::MemoryUse::activations).peak};
  std::vector<std::array<int64_t, 6>> all(static_cast<size_t>(world.size()));
  world.everyone()
      .all_gather({all.data(), 6 * world.size(), comm::Dtype::i64}, {mine.data(), 6, comm::Dtype::i64}, {comm::Purpose::control, "memory"})
      .wait_host();
  std::vector<RankMemory> ranks;
  for (const auto& one : all) ranks.push_back({one[0], one[1], one[2], one[3], one[4], one[5]});
  return ranks;
}

// The bytes that all ranks have sent since `before`, by purpose.
SentBytes sent_since(comm::World& world, const comm::Ledger& before) {
  SentBytes sent{};
  for (int purpose = 0; purpose < comm::kPurposes; ++purpose) {
    const auto of = static_cast<comm::Purpose>(purpose);
    sent[static_cast<size_t>(purpose)] = world.ledger().total(of).bytes - before.total(of).bytes;
  }
  world.everyone()
      .all_reduce({sent.data(), comm::kPurposes, comm::Dtype::i64}, comm::Reduce::sum, {comm::Purpose::control, "ledger"})
      .wait_host();
  return sent;
}

mesh::NamedTensors copied(const mesh::NamedTensors& tensors) {
  mesh::NamedTensors copies;
  for (const mesh::NamedTensor& one : tensors) copies.push_back({one.name, one.tensor.cpu().clone()});
  return copies;
}

mesh::NamedTensors whole_gradients(const Job& job) {
  std::vector<StateTensor> state = parameter_state(job);
  for (StateTensor& one : state) one.mine = at::Tensor(), one.dtype = at::kFloat;
  for (const parallel::ParameterSlice& piece : job.engine.store->pieces()) state[piece.parameter].mine = piece.gradient;
  const std::vector<bool> trained = model::trainable(*job.engine.model, job.config.settings.model.train);
  std::erase_if(state, [&](const StateTensor& one) { return !trained[one.parameter]; });
  return copied(gather_whole(job, state));
}

}  // namespace

LayoutTrace trace_layout(comm::World& world, base::Recipe recipe, const LayoutTraceOptions& options) {
  recipe.set("train.steps", options.steps, "verify");
  recipe.set("train.epochs", 0.0, "verify");
  Start start;
  start.cache = options.cache;
  start.plan = options.plan;
  const std::unique_ptr<Job> job = build(world, std::move(recipe), start, {});
  if (options.plant == kPlantedMerge) {
    const parallel::ContextRule& rule = job->engine.context;
    if (job->config.plan.mesh.extent("cp") == 1 || rule.method == model::ContextForm::gather || rule.method == model::ContextForm::ulysses)
      base::fail_input("--plant {}: this layout merges no partial results of attention: use mesh.cp above 1 with context.form = ring",
                       kPlantedMerge);
    job->engine.context.mistakes.skip_merge = true;
  } else if (options.plant == kPlantedSlice) {
    const int64_t slice = job->engine.options.slice;
    if (slice == 0 || slice >= job->data.length || job->config.plan.mesh.extent("cp") > 1)
      base::fail_input("--plant {}: no layer of this layout adds up gradients of keys slice by slice: use recompute.mode = stream with a "
                       "recompute.slice below data.length, without mesh.cp",
                       kPlantedSlice);
    job->engine.options.slice_mistakes.forget_later_slices = true;
  } else if (!options.plant.empty()) {
    int64_t found = job->engine.store->reducer().skip_copy_reduction(options.plant) ? 1 : 0;
    world.everyone().all_reduce({&found, 1, comm::Dtype::i64}, comm::Reduce::sum, {comm::Purpose::control, "plant"}).wait_host();
    if (found == 0)
      base::fail_input("--plant {}: its gradient is not summed over copies in this layout: name a norm's weight, with mesh.tp above 1",
                       options.plant);
  }
  LayoutTrace recording{.elements = job->engine.model->elements()};
  for (const model::Parameter& one : job->engine.model->parameters())
    if (parallel::expert_dim(one) >= 0) recording.expert_elements += one.elements();
  RoutingRecorder routing;
  if (recording.expert_elements > 0) {
    job->engine.options.routing = &routing;
    job->engine.options.draws_by_token = true;  // passes then know which token is which
  }
  const comm::Ledger before = world.ledger();
  for (int64_t step = 1; step <= options.steps; ++step) {
    TracedStep& one = recording.steps.emplace_back();
    if (options.tensors)
      job->engine.before_update = [&] {
        one.unequal_copies = told_to_all(world, unequal_copies(world, *job));
        one.gradients = whole_gradients(*job);
      };
    const TakenStep taken = take_step(*job);
    job->progress.steps_done = step;
    std::array<double, 1> loss{taken.output.loss_sum.item<double>()};
    job->engine.step_group->all_reduce({loss.data(), 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "loss"}).wait_host();
    one.loss = loss[0] / static_cast<double>(taken.loss_denominator);
    one.gradient_norm = taken.output.gradient_norm.item<double>();
    if (recording.expert_elements > 0) one.routing = routing.take(world);
    if (options.tensors) one.parameters = copied(gather_whole(*job, parameter_state(*job)));
  }
  recording.sent = sent_since(world, before);
  recording.memory = memory_of_all(world, *job);
  return recording;
}

namespace {

// By parameter: the elements whose gradient was within rounding of 0 in some step, like that of a key's bias, which is 0 in theory. Adam
// makes a whole step of the rounding error.
using RoundingOnly = std::map<std::string, at::Tensor>;

void note_rounding(RoundingOnly& into, const mesh::NamedTensors& gradients, double tolerance) {
  for (const mesh::NamedTensor& one : gradients) {
    const at::Tensor small = one.tensor.abs().le(tolerance * one.tensor.abs().max());
    const auto [known, added] = into.try_emplace(one.name, small);
    if (!added) known->second = known->second.logical_or(small);
  }
}

}  // namespace

Difference first_difference(const LayoutTrace& one, const LayoutTrace& other, double tolerance) {
  RoundingOnly left_out;
  const auto compare = [&](int64_t step, const char* what, const mesh::NamedTensors& a, const mesh::NamedTensors& b, double allowed,
                           const RoundingOnly& without = {}) {
    CAIRN_CHECK(a.size() == b.size(), "{} tensors against {}", a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      at::Tensor apart = (a[i].tensor - b[i].tensor).abs();
      if (const auto some = without.find(a[i].name); some != without.end()) apart = apart.masked_fill(some->second, 0);
      const double scale = b[i].tensor.abs().max().item<double>(), largest = apart.max().item<double>();
      // The scale is at least 1e-3, because gradients that should be 0 are seldom exactly 0.
      if (!(largest <= allowed * std::max(scale, 1e-3))) return Difference{step, fmt::format("{} {}", what, a[i].name), largest, scale};
    }
    return Difference{};
  };
  for (size_t i = 0; i < std::min(one.steps.size(), other.steps.size()); ++i) {
    const TracedStep &a = one.steps[i], &b = other.steps[i];
    const auto step = static_cast<int64_t>(i) + 1;
    // Adam divides by the root of the squared gradient. Where a gradient is nearly 0 its rounding error is as large as the gradient, and so
    // are the differences in the parameter and in later gradients.
    constexpr double kAfterUpdate = 100;
    const double of_gradients = tolerance * (step == 1 ? 1 : kAfterUpdate);
    if (!(std::abs(a.loss - b.loss) <= tolerance * std::max(1.0, std::abs(b.loss))))
      return {step, "the loss", std::abs(a.loss - b.loss), std::abs(b.loss)};
    if (Difference found = compare(step, "the gradient of", a.gradients, b.gradients, of_gradients); found.step > 0) return found;
    for (const TracedStep* of : {&a, &b})
      if (!of->unequal_copies.empty()) return {step, fmt::format("two copies of the gradient of {}", of->unequal_copies.front()), 0, 0};
    if (!(std::abs(a.gradient_norm - b.gradient_norm) <= of_gradients * b.gradient_norm))
      return {step, "the gradient norm", std::abs(a.gradient_norm - b.gradient_norm), b.gradient_norm};
    note_rounding(left_out, b.gradients, tolerance);
    if (Difference found = compare(step, "the parameter", a.parameters, b.parameters, kAfterUpdate * tolerance, left_out); found.step > 0)
      return found;
  }
  return {};
}

}  // namespace cairn::train
