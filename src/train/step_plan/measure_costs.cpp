#include "train/step_plan/measure_costs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "model/context/attention.h"
#include "model/families/config.h"
#include "parallel/batch/context_batch.h"
#include "parallel/step_plan/unit_batch.h"
#include "train/accumulate_gradients.h"
#include "train/flops.h"
#include "train/job.h"

namespace cairn::train {
namespace {

constexpr int kLengths = 6, kRepeats = 2;
constexpr double kGoodFit = 0.98;  // R^2 below it: the machine was disturbed, or passes do not cost a + b s + c s^2
constexpr double kAssumedFlopsCpu = 20e9, kAssumedFlopsGpu = 200e12;
constexpr int64_t kLeastMessage = 64 << 10, kMostMessage = 16 << 20;  // bytes

double now_s(comm::World& world, const at::Device& device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
  return base::seconds(world.clock().now());
}

std::vector<int64_t> lengths_up_to(int64_t longest) {
  std::set<int64_t> lengths;
  for (int i = 0; i < kLengths; ++i) lengths.insert(std::max<int64_t>(1, longest >> i));
  return {lengths.begin(), lengths.end()};
}

// Sequences of these lengths out of the training data, one document after the other, ragged.
mesh::Batch training_text(const Job& job, const std::vector<int64_t>& lengths) {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const data::SampleRange training = job.data.samples->training();
  std::vector<int64_t> ids;
  for (int64_t found = 0; found < longest;) {
    ids.push_back(training.first + static_cast<int64_t>(ids.size()) % training.count);
    found += job.data.samples->length_of(ids.back());
  }
  const mesh::Batch all = job.batches->fill(ids);
  mesh::Batch batch;
  batch.ids = at::arange(static_cast<int64_t>(lengths.size()), all.ids.options());
  for (const char* name : {"tokens", "targets"}) {
    std::vector<at::Tensor> parts;
    for (const int64_t length : lengths) parts.push_back(all.field(name).narrow(0, 0, length));
    batch.fields[name] = {at::cat(parts), mesh::Field::Shape::ragged};
  }
  return mesh::to_device(batch, job.config.device);
}

// Means over the ranks of the least of several times.
std::vector<planner::MeasuredPass> measured_passes(Job& job, comm::World& world, int pool_ranks, int64_t longest) {
  std::vector<int64_t> lengths;
  for (int i = 0; i < kRepeats; ++i)
    for (const int64_t one : lengths_up_to(longest)) lengths.push_back(one);
  lengths.push_back(1);  // reduces the gradients of all
  // Every rank runs the same passes by itself.
  Engine& engine = job.engine;
  const int own = engine.micro_batching.pool.rank;
  parallel::StepPlan plan{.step = 1, .ranks = pool_ranks, .micro_batches = static_cast<int64_t>(lengths.size()), .units = {}};
  for (size_t i = 0; i < lengths.size(); ++i)
    plan.units.push_back({.ranks = {own}, .sequences = {{static_cast<int64_t>(i), lengths[i]}}, .micro_batch = static_cast<int64_t>(i)});
  const TrainingPasses all = planned_passes(engine, training_text(job, lengths), plan, 1.0 / static_cast<double>(longest), /*step=*/0);
  std::vector<double> seconds;
  accumulate_gradients(
      engine, all, [](int64_t) {},
      [&](std::span<const parallel::Pass> passes) -> std::vector<at::Tensor> {
        for (const parallel::Pass& pass : passes) {
          const double begun = now_s(world, job.config.device);
          parallel::execute(pass);
          seconds.push_back(now_s(world, job.config.device) - begun);
        }
        return {};
      });
  std::vector<planner::MeasuredPass> passes;
  for (const int64_t length : lengths_up_to(longest)) {
    double least = -1;
    for (size_t i = 0; i + 1 < lengths.size(); ++i)
      if (lengths[i] == length && (least < 0 || seconds[i] < least)) least = seconds[i];
    passes.push_back({length, least});
  }
  std::vector<double> sums;
  for (const planner::MeasuredPass& one : passes) sums.push_back(one.seconds);
  engine.step_group
      ->all_reduce({sums.data(), static_cast<int64_t>(sums.size()), comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "costs"})
      .wait_host();
  for (size_t i = 0; i < passes.size(); ++i) passes[i].seconds = sums[i] / engine.step_group->size();
  return passes;
}

void from_flops(const Job& job, int64_t longest, planner::SequenceCosts& costs) {
  // A token attends to half of its sequence on average, so FLOPs of a token are b + a s.
  const double per_second = job.config.device.is_cuda() ? kAssumedFlopsGpu : kAssumedFlopsCpu;
  const int64_t two = std::max<int64_t>(longest, 2);
  const double one = training_flops_per_token(job, 1), all = training_flops_per_token(job, two);
  const double more = (all - one) / static_cast<double>(two - 1);
  costs.quadratic_s = more / per_second;
  costs.linear_s = (one - more) / per_second;
  costs.pass_s = 0;
}

void measure_passes(Job& job, comm::World& world, planner::SequencePool& pool) {
  const int64_t longest = std::min(pool.tokens_per_rank, std::max<int64_t>(job.data.length, 1));
  planner::SequenceCosts& costs = pool.costs;
  if (lengths_up_to(longest).size() < 3) return from_flops(job, longest, costs);
  planner::PassFit fit;
  for (int tries = 0; tries < 2; ++tries) {
    const std::vector<planner::MeasuredPass> passes = measured_passes(job, world, pool.ranks, longest);
    if (std::any_of(passes.begin(), passes.end(), [](const planner::MeasuredPass& one) { return one.seconds <= 0; }))
      return from_flops(job, longest, costs);
    fit = fit_pass_costs(passes);
    if (fit.r_squared >= kGoodFit) break;
  }
  costs.quadratic_s = fit.quadratic_s, costs.linear_s = fit.linear_s, costs.pass_s = fit.pass_s;
  if (fit.r_squared < kGoodFit && job.engine.step_group->rank() == 0)
    world.log().warn("context.plan: passes of 1 to {} tokens do not cost a + b s + c s^2 (R^2 {:.3f}): plans may be uneven", longest,
                     fit.r_squared);
}

// Bytes of keys, values and their gradients that attention sends for each token, as SequenceCosts counts them, and the largest message.
struct ExchangeBytes {
  double of_token = 0;
  double message = 0;
};

ExchangeBytes exchange_bytes(const Job& job, const planner::SequencePool& pool) {
  const std::string config = job.engine.model->config_json();
  if (config.empty() || pool.ranks == 1) return {};
  const model::DecoderShape shape = model::parse_config(config, "the model");
  const int tp = job.config.plan.mesh.extent("tp");
  const int64_t kv_heads = std::max<int64_t>(1, shape.kv_heads / tp);
  const model::ContextSizes sizes{.batch = 1,
                                  .kv_heads = kv_heads,
                                  .head_dim = shape.head_dim,
                                  .element_bytes = parallel::compute_bytes(job.config.plan),
                                  .documents = false,
                                  .heads = std::max<int64_t>(1, shape.heads / tp)};
  const bool all_to_all = pool.costs.exchange == planner::Exchange::all_to_all;
  const int64_t tokens = 2 * pool.tokens_per_rank;
  const model::ContextBytes two =
      model::context_bytes(sizes, {}, parallel::make_context_split(tokens, 2, job.engine.context.balanced), job.engine.context.method);
  // Two ranks send, all together, all of it (a ring), or half (each keeps one part in two).
  const double of_token = static_cast<double>(two.forward + two.backward) / static_cast<double>(tokens) * (all_to_all ? 2 : 1);
  return {.of_token = of_token * static_cast<double>(shape.layers),
          .message = static_cast<double>(pool.tokens_per_rank * 2 * kv_heads * shape.head_dim * sizes.element_bytes)};
}

// The neighbours among which this rank sends, of groups of `degree`; empty: it is left over.
std::vector<int> neighbours(const planner::SequencePool& pool, int rank, int degree) {
  const int node = pool.ranks_per_node > 0 && degree <= pool.ranks_per_node ? pool.ranks_per_node : pool.ranks;
  const int begin = rank / node * node, end = std::min(begin + node, pool.ranks);
  const int first = begin + (rank - begin) / degree * degree;
  std::vector<int> members;
  for (int r = first; r < first + degree && first + degree <= end; ++r) members.push_back(r);
  return members;
}

// Bytes a second that a rank sends among `degree` neighbours while all do.
double bandwidth_of(Job& job, comm::World& world, const planner::SequencePool& pool, int degree, int64_t message) {
  const UnitPool& units = job.engine.micro_batching.pool;
  const std::vector<int> members = neighbours(pool, units.rank, degree);
  const bool all_to_all = pool.costs.exchange == planner::Exchange::all_to_all;
  const int64_t part = std::max<int64_t>(message / 4 / degree, 1), elements = all_to_all ? part * degree : message / 4;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(job.config.device);
  const at::Tensor out = at::zeros({elements}, options), in = at::zeros({elements}, options);
  const comm::Label label{comm::Purpose::control, "bandwidth"};
  double least = -1;
  for (int i = 0; i <= kRepeats; ++i) {  // the first opens connections
    job.engine.step_group->barrier("bandwidth").wait_host();
    double took = 0;
    if (!members.empty()) {
      comm::Group& group = units.group(members);
      const double begun = now_s(world, job.config.device);
      if (all_to_all) {
        group.all_to_all(in, out, label).wait_host();
      } else {
        comm::Work sent = group.send(out, (group.rank() + 1) % degree, label);
        group.recv(in, (group.rank() + degree - 1) % degree, label).wait_host();
        sent.wait_host();
      }
      took = now_s(world, job.config.device) - begun;
    }
    job.engine.step_group->all_reduce({&took, 1, comm::Dtype::f64}, comm::Reduce::max, label).wait_host();
    if (i > 0 && (least < 0 || took < least)) least = took;
  }
  return least > 0 ? static_cast<double>(elements * 4) / least : 0;
}

void measure_links(Job& job, comm::World& world, planner::SequencePool& pool) {
  const ExchangeBytes bytes = exchange_bytes(job, pool);
  pool.costs.exchange_bytes = bytes.of_token;
  if (bytes.of_token <= 0) return;
  const auto message = std::clamp(static_cast<int64_t>(bytes.message), kLeastMessage, kMostMessage);
  std::set<int> degrees{pool.ranks};
  for (int d = 2; d <= pool.ranks; d = d < 8 ? d + 1 : 2 * d) degrees.insert(d);
  for (int d = pool.ranks_per_node; d > 0 && d <= pool.ranks; d += pool.ranks_per_node)
    if (d > 1) degrees.insert(d);
  for (const int degree : degrees)
    if (const double found = bandwidth_of(job, world, pool, degree, message); found > 0) pool.costs.bandwidth[degree] = found;
}

}  // namespace

void measure_costs(Job& job, comm::World& world, planner::SequencePool& pool) {
  measure_passes(job, world, pool);
  measure_links(job, world, pool);
}

int ranks_per_node(comm::World& world, const std::vector<int>& ranks) {
  const size_t n = ranks.size();
  std::vector<std::vector<double>> speed(n, std::vector<double>(n, 0));
  double fastest = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      if (i != j) fastest = std::max(fastest, speed[i][j] = world.transport().link_facts({ranks[i], ranks[j]}).bytes_per_s);
  const auto near = [&](size_t i, size_t j) { return speed[i][j] > fastest / 2; };
  size_t node = 1;
  while (node < n && near(0, node)) ++node;
  if (node == n || node == 1) return 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      if (i != j && near(i, j) != (i / node == j / node)) return 0;
  return static_cast<int>(node);
}

}  // namespace cairn::train
