#include "train/step_passes.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "parallel/pass_run.h"
#include "parallel/pipeline/pipeline.h"
#include "train/features.h"

namespace cairn::train {
namespace {

// An objective with further measures, which the passes of a step fill in.
class WithPassLosses final : public model::Objective {
 public:
  WithPassLosses(std::unique_ptr<model::Objective> own, std::vector<std::string> passes)
      : own_(std::move(own)), passes_(std::move(passes)) {}

  Separates separates() const override { return own_->separates(); }
  bool reads_chunks() const override { return own_->reads_chunks(); }
  std::vector<std::string> measures() const override {
    std::vector<std::string> names = own_->measures();
    for (const std::string& pass : passes_) names.push_back(fmt::format("{}_loss", pass));
    return names;
  }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double weight,
                         const mesh::Axes& axes) const override {
    return own_->evaluate(outputs, batch, gradients, weight, axes);
  }

 private:
  std::unique_ptr<model::Objective> own_;
  std::vector<std::string> passes_;
};

// Notes outputs before the objective of a pass overwrites them: on the last stage of a pipeline nobody else sees them. The logits are
// whole, because others read them.
class NotesOutputs final : public model::Objective {
 public:
  NotesOutputs(const model::Objective& own, std::set<std::string> values, std::map<std::string, at::Tensor>& into)
      : own_(own), values_(std::move(values)), into_(into) {}

  Separates separates() const override { return own_.separates(); }
  std::vector<std::string> measures() const override { return own_.measures(); }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double weight,
                         const mesh::Axes& axes) const override {
    for (const std::string& name : values_) into_[name] = outputs.get(name).clone();
    return own_.evaluate(outputs, batch, gradients, weight, axes);
  }

 private:
  const model::Objective& own_;
  std::set<std::string> values_;
  std::map<std::string, at::Tensor>& into_;
};

using PassSpan = std::span<const WeightedPass>;
using Outputs = std::map<std::string, at::Tensor>;  // of one pass over one micro-batch, by name

parallel::Pass pass_of(const WeightedPass& one, const parallel::Pass& micro_batch, const model::Objective& objective, bool gradients) {
  return {.model = micro_batch.model,
          .at = one.at ? *one.at : micro_batch.at,
          .buffers = micro_batch.buffers,
          .axes = micro_batch.axes,
          .batch = micro_batch.batch,
          .objective = objective,
          .into = gradients ? micro_batch.into : nullptr,
          .weight = micro_batch.weight * one.weight,
          .random = random_of_pass(micro_batch.random, one.draw),
          .trace = micro_batch.trace,
          .memory = micro_batch.memory,
          .context = micro_batch.context,
          .options = one.options ? *one.options : micro_batch.options,
          .recompute = gradients && micro_batch.recompute,
          .progress = micro_batch.progress};
}

const model::Objective& objective_of(const WeightedPass& one, const parallel::Pass& micro_batch) {
  return one.objective ? *one.objective : micro_batch.objective;
}

// By pass: the outputs that others read.
std::vector<std::set<std::string>> outputs_read(PassSpan list) {
  std::vector<std::set<std::string>> read(list.size());
  for (size_t i = 0; i < list.size(); ++i)
    for (const PassReads& one : list[i].reads) {
      CAIRN_CHECK(one.pass < list.size() && one.pass != i && !one.as.empty(), "pass {} of {} reads {} of pass {} as \"{}\"", i, list.size(),
                  one.value, one.pass, one.as);
      CAIRN_CHECK(!one.gradient || (list[i].gradients && list[one.pass].gradients),
                  "pass {} gives pass {} a gradient, and one of them has none", i, one.pass);
      read[one.pass].insert(one.value);
    }
  return read;
}

// The losses of the first pass, with those of measured passes among the measures of `objective`.
model::Losses together(PassSpan list, std::span<const std::string> measured, const model::Objective& objective,
                       std::vector<model::Losses> found) {
  model::Losses losses = std::move(found.front());
  if (measured.empty()) return losses;
  const auto options = losses.sum.options().dtype(at::kDouble);
  const auto own = static_cast<int64_t>(objective.measures().size() - measured.size());
  std::vector<at::Tensor> all{losses.measures.defined() ? losses.measures : at::zeros({own}, options)};  // a rank may have no losses
  CAIRN_CHECK(all.front().numel() >= own, "{} measures of the first pass, and its objective names {}", all.front().numel(), own);
  const at::Tensor terms = all.front().narrow(0, own, all.front().numel() - own);  // of the model's blocks: they come last
  all.front() = all.front().narrow(0, 0, own);
  const at::Tensor none = at::full({1}, std::numeric_limits<double>::quiet_NaN(), options);
  for (const std::string& name : measured) {
    const auto of = std::find_if(list.begin(), list.end(), [&](const WeightedPass& one) { return one.name == name; });
    const auto place = static_cast<size_t>(of - list.begin());
    all.push_back(of == list.end() ? none : (place == 0 ? losses : found[place]).sum.to(at::kDouble).reshape({1}));
  }
  all.push_back(terms);
  losses.measures = at::cat(all);
  return losses;
}

// The passes of a list over one micro-batch, on a single stage.
class MicroBatchPasses {
 public:
  MicroBatchPasses(PassSpan list, const parallel::Pass& micro_batch) : list_(list), read_(outputs_read(list)), members_(list.size()) {
    for (size_t i = 0; i < list.size(); ++i) {
      const model::Objective* objective = &objective_of(list[i], micro_batch);
      if (!read_[i].empty()) objective = &whole_.emplace_back(*objective, std::set<std::string>{}, nothing_);
      passes_.push_back(pass_of(list[i], micro_batch, *objective, list[i].gradients));
    }
  }

  std::vector<model::Losses> run() {
    for (size_t i = 0; i < list_.size(); ++i) {
      forward(i);
      for (size_t k = 0; k <= i; ++k)
        if (!members_[k].evaluated && can_evaluate(k)) evaluate(k);
      for (size_t k = i + 1; k-- > 0;)
        if (can_go_back(k)) backward(k);
    }
    std::vector<model::Losses> losses;
    for (Member& one : members_) {
      CAIRN_CHECK(one.evaluated && !one.run, "a pass of {} was not finished", list_.size());
      losses.push_back(std::move(one.losses));
    }
    return losses;
  }

 private:
  struct Member {
    std::unique_ptr<parallel::PassRun> run = {};  // until it is over
    Outputs outputs = {};
    bool forwarded = false, evaluated = false;
    model::Losses losses = {};
  };

  void forward(size_t i) {
    Member& one = members_[i];
    one.run = std::make_unique<parallel::PassRun>(passes_[i]);
    one.run->forward();
    one.forwarded = true;
    for (const std::string& name : read_[i]) {
      const at::Tensor made = one.run->output(name);
      if (made.defined()) one.outputs[name] = passes_[i].into ? made.clone() : made;  // the objective overwrites it
    }
  }

  bool can_evaluate(size_t i) const {
    return std::all_of(list_[i].reads.begin(), list_[i].reads.end(), [&](const PassReads& one) { return members_[one.pass].forwarded; });
  }

  void evaluate(size_t i) {
    Member& one = members_[i];
    for (const PassReads& read : list_[i].reads)
      if (const auto found = members_[read.pass].outputs.find(read.value); found != members_[read.pass].outputs.end())
        one.run->put(read.as, read_again(i, read) ? found->second.clone() : found->second);
    one.losses = one.run->evaluate_objective();
    one.evaluated = true;
    for (const PassReads& read : list_[i].reads)
      if (read.gradient) members_[read.pass].run->put_gradient(read.value, one.run->take_gradient(read.as));
    if (!passes_[i].into) one.run.reset();
    for (size_t k = 0; k < members_.size(); ++k)
      if (!needed(k)) members_[k].outputs.clear();
  }

  // Whether somebody else will read what an objective with a gradient for it may overwrite.
  bool read_again(size_t reader, const PassReads& read) const { return read.gradient && readers(read.pass, reader) > 0; }
  int64_t readers(size_t pass, size_t but) const {
    int64_t count = 0;
    for (size_t k = 0; k < list_.size(); ++k)
      if (k != but && !members_[k].evaluated)
        count += std::count_if(list_[k].reads.begin(), list_[k].reads.end(), [&](const PassReads& one) { return one.pass == pass; });
    return count;
  }
  bool needed(size_t pass) const { return readers(pass, list_.size()) > 0; }

  // All objectives that give it a gradient are evaluated.
  bool can_go_back(size_t i) const {
    if (!members_[i].run || !members_[i].evaluated || !passes_[i].into) return false;
    for (size_t k = 0; k < list_.size(); ++k)
      for (const PassReads& read : list_[k].reads)
        if (read.pass == i && read.gradient && !members_[k].evaluated) return false;
    return true;
  }

  void backward(size_t i) {
    members_[i].run->backward();
    members_[i].run.reset();
  }

  PassSpan list_;
  std::vector<std::set<std::string>> read_;
  std::deque<NotesOutputs> whole_;
  Outputs nothing_;
  std::deque<parallel::Pass> passes_;  // runs refer to them
  std::vector<Member> members_;
};

// A list over all micro-batches of a step through a pipeline.
class PipelinedPasses {
 public:
  PipelinedPasses(PassSpan list, std::span<const parallel::Pass> micro_batches, parallel::Pipeline& pipeline)
      : list_(list), micro_batches_(micro_batches), pipeline_(pipeline), read_(outputs_read(list)), outputs_(list.size()) {
    for (std::vector<Outputs>& one : outputs_) one.resize(micro_batches.size());
  }

  // By pass, then by micro-batch.
  std::vector<std::vector<model::Losses>> run() {
    std::vector<std::vector<model::Losses>> losses;
    for (size_t i = 0; i < list_.size(); ++i) {
      for (const PassReads& read : list_[i].reads) {
        CAIRN_CHECK(!read.gradient, "pass {} gives a gradient to an output of pass {}, through a pipeline", i, read.pass);
        if (read.pass > i && !done_.contains(read.pass)) sweep(read.pass, /*gradients=*/false);
      }
      losses.push_back(sweep(i, list_[i].gradients));
    }
    return losses;
  }

 private:
  std::vector<model::Losses> sweep(size_t i, bool gradients) {
    std::deque<NotesOutputs> notes;
    std::vector<parallel::Pass> passes;
    const bool keeps = !read_[i].empty() && !done_.contains(i);
    for (size_t m = 0; m < micro_batches_.size(); ++m) {
      const model::Objective* objective = &objective_of(list_[i], micro_batches_[m]);
      if (keeps) objective = &notes.emplace_back(*objective, read_[i], outputs_[i][m]);
      parallel::Pass& pass = passes.emplace_back(pass_of(list_[i], micro_batches_[m], *objective, gradients));
      if (gradients == list_[i].gradients) give(i, m, pass.batch);
      if (!gradients && list_[i].gradients) pass.as_training = true;
    }
    done_.insert(i);
    return pipeline_.run(passes);
  }

  // Only ranks that run the last blocks have outputs, and only they read them.
  void give(size_t i, size_t m, mesh::Batch& batch) const {
    for (const PassReads& read : list_[i].reads)
      if (const auto found = outputs_[read.pass][m].find(read.value); found != outputs_[read.pass][m].end())
        batch.fields[read.as] = {found->second, mesh::Field::Shape::whole};
  }

  PassSpan list_;
  std::span<const parallel::Pass> micro_batches_;
  parallel::Pipeline& pipeline_;
  std::vector<std::set<std::string>> read_;
  std::vector<std::vector<Outputs>> outputs_;  // by pass, then by micro-batch
  std::set<size_t> done_;                      // passes whose outputs are there
};

// Of held-out samples: passes without gradients, and without further losses.
std::vector<model::Losses> run_held_out(std::span<const std::string> measured, std::span<const parallel::Pass> passes,
                                        parallel::Pipeline* pipeline) {
  std::vector<model::Losses> losses;
  if (pipeline) {
    losses = pipeline->run(passes);
  } else {
    for (const parallel::Pass& pass : passes) losses.push_back(parallel::execute(pass));
  }
  for (model::Losses& one : losses) {
    std::vector<model::Losses> alone{std::move(one)};
    one = together({}, measured, passes.front().objective, std::move(alone));
  }
  return losses;
}

}  // namespace

base::Random random_of_pass(const base::Random& step, uint64_t draw) { return draw == 0 ? step : step.for_purpose("pass").for_index(draw); }

std::unique_ptr<model::Objective> with_pass_losses(std::unique_ptr<model::Objective> own, std::vector<std::string> passes) {
  return std::make_unique<WithPassLosses>(std::move(own), std::move(passes));
}

std::vector<model::Losses> run_passes(PassSpan list, std::span<const std::string> measured, std::span<const parallel::Pass> micro_batches,
                                      parallel::Pipeline* pipeline) {
  if (!micro_batches.front().into) return run_held_out(measured, micro_batches, pipeline);
  CAIRN_CHECK(!list.empty(), "a step without passes, of {} micro-batches", micro_batches.size());
  std::vector<model::Losses> losses;
  if (pipeline) {
    std::vector<std::vector<model::Losses>> found = PipelinedPasses(list, micro_batches, *pipeline).run();
    for (size_t m = 0; m < micro_batches.size(); ++m) {
      std::vector<model::Losses> of_passes;
      for (std::vector<model::Losses>& one : found) of_passes.push_back(std::move(one[m]));
      losses.push_back(together(list, measured, micro_batches[m].objective, std::move(of_passes)));
    }
  } else {
    for (const parallel::Pass& one : micro_batches)
      losses.push_back(together(list, measured, one.objective, MicroBatchPasses(list, one).run()));
  }
  return losses;
}

std::vector<Limit> several_passes_limits(std::vector<Limit> more) {
  std::vector<Limit> limits{
      {Feature::loss_chunks, "its passes read each other's whole logits: leave it out"},
      {Feature::cuda_graph, "a step has several passes, and they are not captured: leave it out"},
      {Feature::bf16_gradients, "gradients of several passes are summed in fp32: leave it out"},
      {Feature::step_plans, "a step has several passes over whole micro-batches: use context.plan = fixed"},
  };
  limits.insert(limits.begin(), more.begin(), more.end());
  return limits;
}

}  // namespace cairn::train
