#include "proofs/sequence_runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/block.h"
#include "model/model.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/build/build_steps.h"
#include "train/state/full_state.h"
#include "train/step_plan/kept_plans.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What all blocks of a rank's model share.
struct Book {
  comm::World& world;
  double flops_per_s = 0;
  std::vector<PassTime> passes = {};
  double tokens = 0, pairs = 0;  // of the last pass, on this rank
};

// A block that computes what it computes, and takes the time of its FLOPs on the network's clock. A query at position p of its sequence
// has p + 1 pairs, whoever computes it.
class CostedBlock final : public model::Block {
 public:
  CostedBlock(Book& book, const model::Block& inner, bool first) : book_(book), inner_(inner), first_(first) {
    for (const model::BlockOp& one : inner.card().operations) of_token_ += one.flops_per_token, of_pair_ += one.flops_per_pair;
  }
  const model::Card& card() const override { return inner_.card(); }

  void forward(model::Values& values, model::Saved* keep, const model::Call& call) const override {
    if (first_) begin_pass(values.get("positions"));
    const double flops = of_token_ * book_.tokens + of_pair_ * book_.pairs;
    if (keep) keep->put("costed.flops", at::scalar_tensor(flops, at::kDouble));
    take(flops, [&] { inner_.forward(values, keep, call); });
  }
  void backward_input(model::Values& gradients, model::Saved& saved, const model::Call& call) const override {
    take(saved.get("costed.flops").item<double>(), [&] { inner_.backward_input(gradients, saved, call); });
  }
  void backward_weight(model::Saved&& saved, mesh::Gradients& into, const model::Call& call) const override {
    take(saved.get("costed.flops").item<double>(), [&] { inner_.backward_weight(std::move(saved), into, call); });
    if (first_) book_.passes.back().end_s = now();
  }
  void plain(model::Values& values, const model::Call& call) const override { inner_.plain(values, call); }

 private:
  void begin_pass(const at::Tensor& positions) const {
    book_.passes.push_back({.begin_s = now()});
    book_.tokens = static_cast<double>(positions.numel());
    book_.pairs = positions.sum().item<double>() + book_.tokens;
  }
  double now() const { return base::seconds(book_.world.clock().now()); }
  template <typename Act>
  void take(double flops, Act act) const {
    const double seconds = book_.flops_per_s > 0 ? flops / book_.flops_per_s : 0;
    if (seconds > 0) book_.world.timer(book_.world.clock().now() + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))).wait();
    const double begun = thread_cpu_s();
    act();
    book_.passes.back().cpu_s += thread_cpu_s() - begun;
  }

  Book& book_;
  const model::Block& inner_;
  const bool first_;
  double of_token_ = 0, of_pair_ = 0;
};

class CostedModel final : public model::Model {
 public:
  CostedModel(Book& book, std::unique_ptr<model::Model> inner) : inner_(std::move(inner)) {
    for (const model::Parameter& parameter : inner_->parameters()) add(parameter);
    bool first = true;
    for (const auto& block : inner_->blocks()) add(std::make_unique<CostedBlock>(book, *block, std::exchange(first, false)));
  }
  model::Buffers make_buffers(const at::TensorOptions& options) const override { return inner_->make_buffers(options); }
  std::string config_json() const override { return inner_->config_json(); }

 private:
  std::unique_ptr<model::Model> inner_;
};

mesh::NamedTensors whole_gradients(const train::Job& job) {
  std::vector<train::StateTensor> state = train::parameter_state(job);
  for (train::StateTensor& one : state) one.mine = at::Tensor(), one.dtype = at::kFloat;
  for (const parallel::ParameterSlice& piece : job.engine.store->pieces()) state[piece.parameter].mine = piece.gradient;
  mesh::NamedTensors copies;
  for (const mesh::NamedTensor& one : train::gather_whole(job, state)) copies.push_back({one.name, one.tensor.clone()});
  return copies;
}

}  // namespace

std::string write_documents(const ProofOptions& options, const std::string& name, const std::vector<int64_t>& lengths) {
  const std::string file = options.scratch + "/" + name;
  std::ofstream out(file);
  const base::Random random = base::Random(options.seed).for_purpose("documents");
  uint64_t drawn = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t k = 0; k < lengths[i]; ++k) out << static_cast<char>('a' + random.below(drawn++, 26));
    if (i + 1 < lengths.size()) out << "<|endoftext|>";
  }
  return file;
}

int64_t samples_of(const base::Recipe& recipe) {
  int64_t count = 0;
  for (const std::exception_ptr& error :
       comm::LocalNetwork(1).run([&](comm::World& world) { count = train::build(world, recipe, {}, {})->data.samples->training().count; }))
    if (error) std::rethrow_exception(error);
  return count;
}

int64_t SequenceResult::attention_total() const {
  int64_t sum = 0;
  for (const auto& [pair, bytes] : attention_bytes) sum += bytes;
  return sum;
}

SequenceResult run_sequences(const SequenceRun& run) {
  SequenceResult result;
  result.steps.resize(static_cast<size_t>(run.steps));
  for (SequenceStep& step : result.steps) step.passes.resize(static_cast<size_t>(run.ranks));
  std::mutex mutex;
  base::Recipe recipe = run.recipe;
  recipe.set("train.steps", run.steps, "proof");
  comm::LocalNetwork network(run.ranks, {.link = run.link});
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         Book book{world, run.flops_per_s};
         const std::unique_ptr<train::Job> job = train::build(world, recipe, {}, {});
         job->engine.model = std::make_unique<CostedModel>(book, std::move(job->engine.model));
         train::stop_loader(*job);
         train::plan_by_measured_costs(*job, world);
         if (run.plan) job->ahead.planner = train::plan_as_kept({{1, *run.plan}}, job->ahead.planner);
         train::start_loader(*job);
         const auto me = static_cast<size_t>(world.rank());
         std::map<int, int64_t> before;
         for (int to = 0; to < run.ranks; ++to) before[to] = world.ledger().between(world.rank(), to, comm::Purpose::activation).bytes;
         for (size_t s = 0; s < result.steps.size(); ++s) {
           if (s == 0)
             job->engine.before_update = [&] {
               mesh::NamedTensors whole = whole_gradients(*job);
               if (world.rank() == 0) result.gradients = std::move(whole);
             };
           else
             job->engine.before_update = {};
           book.passes.clear();
           world.everyone().barrier("step").wait_host();
           const double begun = base::seconds(world.clock().now());
           const train::TakenStep taken = train::take_step(*job);
           world.everyone().barrier("step").wait_host();
           const double took = base::seconds(world.clock().now()) - begun;
           job->progress.steps_done += 1;
           std::array<double, 1> loss{taken.output.loss_sum.item<double>()};
           job->engine.step_group->all_reduce({loss.data(), 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "loss"})
               .wait_host();
           const std::lock_guard lock(mutex);
           SequenceStep& step = result.steps[s];
           step.passes[me] = book.passes;
           step.step_s = std::max(step.step_s, took);
           if (world.rank() > 0) continue;
           step.loss = loss[0] / static_cast<double>(taken.loss_denominator);
           step.data_wait_s = taken.data_wait_s;
           if (taken.plan) step.plan = *taken.plan;
           for (const auto& [name, value] : taken.plan_metrics)
             if (name == "plan_seconds") step.plan_s = value;
         }
         const std::lock_guard lock(mutex);
         for (int to = 0; to < run.ranks; ++to)
           if (const int64_t bytes = world.ledger().between(world.rank(), to, comm::Purpose::activation).bytes - before[to]; bytes > 0)
             result.attention_bytes[{world.rank(), to}] = bytes;
       }))
    if (error) std::rethrow_exception(error);
  return result;
}

double largest_relative_error(const mesh::NamedTensors& a, const mesh::NamedTensors& b) {
  CAIRN_CHECK(a.size() == b.size(), "{} tensors and {}", a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double scale = std::max(b[i].tensor.abs().max().item<double>(), 1e-12);
    largest = std::max(largest, (a[i].tensor - b[i].tensor).abs().max().item<double>() / scale);
  }
  return largest;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  double sa = 0, sb = 0, aa = 0, bb = 0, ab = 0;
  for (size_t i = 0; i < a.size(); ++i) sa += a[i], sb += b[i];
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] - sa / n, y = b[i] - sb / n;
    aa += x * x, bb += y * y, ab += x * y;
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace cairn::study
