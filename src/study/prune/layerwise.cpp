#include "study/prune/layerwise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "memory/host_allocator.h"
#include "mesh/flat_gradients.h"
#include "mesh/splits.h"
#include "mesh/trainable_gradients.h"
#include "model/bit_mask.h"
#include "model/decoder/decoder.h"
#include "model/decoder/masked_weight.h"
#include "model/families/families.h"
#include "model/formed_weights.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/options.h"
#include "study/prune/criteria.h"
#include "study/prune/input_statistics.h"
#include "study/prune/layer_stream.h"
#include "study/prune/model_writer.h"
#include "study/prune/recover_subset.h"

namespace cairn::study {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

class Layerwise {
 public:
  explicit Layerwise(const LayerwiseSetup& setup)
      : s_(setup),
        o_(setup.options),
        recovers_(o_.recover.mode == RecoverMode::reconstruct),
        shape_(pruned_shape(o_.recover, setup.from.shape)),
        random_(base::Random(static_cast<uint64_t>(o_.seed)).for_purpose("prune")) {
    observed_ = model::make_decoder(shape_, {}, make_observing_rule(observer_));
    weights_ = pruned_weights(*observed_, o_.parsed_pattern());
    RecoverOptions none;
    none.train.clear();
    const RecoverOptions& how = recovers_ ? o_.recover : none;
    adapter_ = adapter_shape(how, weights_, shape_, /*with_head=*/false);
    repaired_ = model::make_decoder(shape_, adapter_, model::make_sparse_rule(sparse_options(how, weights_)));
    if (recovers_)
      for (const std::string& name : trained_parameters(*repaired_, o_.recover, shape_, /*with_head=*/false)) trained_.insert(name);
    observed_parts_ = parts_of(*observed_, shape_);
    repaired_parts_ = parts_of(*repaired_, shape_);
    buffers_ = model::make_decoder(shape_)->make_buffers(at::TensorOptions().dtype(at::kFloat).device(s_.device));
    mine_ = mesh::even_part(s_.samples, s_.group.size(), s_.group.rank());
  }

  LayerwiseResult run() {
    const int64_t before = memory::host_memory().current_bytes;
    memory::reset_host_peak();
    for (const ModelPart& part : repaired_parts_) {
      const auto values =
          static_cast<int64_t>(std::accumulate(part.parameters.begin(), part.parameters.end(), int64_t{0}, [&](int64_t n, int32_t i) {
            return n + repaired_->parameters()[static_cast<size_t>(i)].elements();
          }));
      result_.largest_part_bytes = std::max(result_.largest_part_bytes, 4 * values);
    }
    result_.model_bytes = 4 * observed_->elements();
    open_writer();
    for (size_t part = 0; part < observed_parts_.size(); ++part) {
      if (s_.stop.requested()) throw Error(Error::Kind::cancelled, "stopped while layers were pruned: start it again");
      const bool layer = part > 0 && part + 1 < observed_parts_.size();
      layer ? prune_layer(part) : copy_part(part);
      result_.peak_bytes = std::max<int64_t>(0, memory::host_memory().peak_bytes - before);
    }
    if (writer_) writer_->commit();
    s_.group.barrier("the pruned model").wait();
    return std::move(result_);
  }

 private:
  bool activations() const { return o_.needs_activations(); }

  snapshot::TensorEntry entry_of(const model::Parameter& parameter) const {
    const at::Tensor found = s_.from.view(parameter.name);
    return {.name = parameter.name,
            .dtype = found.defined() ? snapshot::dtype_of(found.scalar_type()) : snapshot::SafetensorsDtype::f32,
            .shape = parameter.shape};
  }

  // Parts are written in running order; a tied head is the embedding's table and is written once.
  void open_writer() {
    std::vector<snapshot::TensorEntry> tensors, masks;
    std::set<int32_t> seen;
    for (const ModelPart& part : observed_parts_)
      for (const int32_t i : part.parameters) {
        if (!seen.insert(i).second) continue;
        const model::Parameter& parameter = observed_->parameters()[static_cast<size_t>(i)];
        tensors.push_back(entry_of(parameter));
        dtypes_[parameter.name] = snapshot::scalar_type(tensors.back().dtype);
        if (is_pruned(parameter.name))
          masks.push_back({.name = parameter.name + model::kMaskSuffix,
                           .dtype = snapshot::SafetensorsDtype::u8,
                           .shape = model::mask_shape(parameter.shape)});
      }
    if (s_.group.rank() == 0) writer_.emplace(s_.to, shape_, std::move(tensors), std::move(masks), s_.from.texts);
  }

  bool is_pruned(const std::string& weight) const { return std::binary_search(sorted().begin(), sorted().end(), weight); }
  const std::vector<std::string>& sorted() const {
    if (sorted_.empty()) sorted_ = weights_, std::sort(sorted_.begin(), sorted_.end());
    return sorted_;
  }

  // Parameters of a part, which no part before it has written.
  void write_part(size_t part, const PartValues& values) {
    for (const int32_t i : observed_parts_[part].parameters) {
      if (!written_.insert(i).second || !writer_) continue;
      const std::string& name = observed_->parameters()[static_cast<size_t>(i)].name;
      writer_->tensors().write(name, values.find(name));
    }
  }

  // The embedding and the head stay as they are.
  void copy_part(size_t part) {
    const PartValues values = make_values(*observed_, observed_parts_[part], s_.device);
    read_values(s_.from, values);
    write_part(part, values);
    if (part > 0 || !activations()) return;
    const PartWeights weights(*observed_, values);
    each_batch([&](int64_t begin, int64_t /*count*/, const mesh::Batch& batch) {
      const at::Tensor out = run_part(*observed_, observed_parts_[part], weights, buffers_, batch, {});
      if (!inputs_) make_stores(out);
      inputs_->write(begin, out);
    });
  }

  void make_stores(const at::Tensor& like) {
    const std::vector<int64_t> shape{mine_.length(), like.size(1), like.size(2)};
    const bool disk = o_.activations == ActivationPlace::disk;
    const auto file = [&](const char* name) {
      return disk ? (s_.to.parent_path() / fmt::format(".{}-{}-{}", s_.to.filename().string(), name, s_.group.rank())).string() : "";
    };
    inputs_ = std::make_unique<ActivationStore>(shape, s_.device, file("inputs"));
    targets_ = std::make_unique<ActivationStore>(shape, s_.device, file("targets"));
    if (!disk) result_.activation_bytes = 2 * 4 * shape[0] * shape[1] * shape[2];
  }

  // Places count within this rank's samples.
  void each_batch(const std::function<void(int64_t begin, int64_t count, const mesh::Batch& batch)>& act) const {
    for (int64_t begin = 0; begin < mine_.length(); begin += o_.calibration_batch) {
      const int64_t count = std::min(o_.calibration_batch, mine_.length() - begin);
      act(begin, count, s_.batches(mine_.begin + begin, count));
    }
  }

  void prune_layer(size_t part) {
    LayerPruned report{.name = fmt::format("layers.{}", part - 1), .error_before = kNotMeasured, .error_after = kNotMeasured};
    std::erase_if(buffers_, [](const auto& one) { return one.first.ends_with(model::kMaskSuffix); });  // of the layer before
    PartValues values = make_values(*repaired_, repaired_parts_[part], s_.device);
    read_values(s_.from, values);  // factors start below
    const PartWeights dense(*observed_, values);
    std::optional<InputStatistics> statistics;
    if (o_.method == PruneMethod::wanda) statistics.emplace(InputStatistics::Kind::squares);
    if (o_.method == PruneMethod::sparsegpt) statistics.emplace(InputStatistics::Kind::products);
    if (activations()) observe(part, dense, statistics ? &*statistics : nullptr, report);
    choose_masks(part, values, statistics ? &*statistics : nullptr, report);
    statistics.reset();
    if (recovers_) {
      report.error_before = error_of(part, dense, /*store=*/false);
      repair(part, values, report);
    }
    round_to_files(part, values);
    write_part(part, values);
    if (activations()) {
      const bool keep = o_.recover.inputs == RecoverInputs::repaired || !recovers_;
      report.error_after = error_of(part, dense, keep);
      if (!recovers_) report.error_before = report.error_after;
      if (!keep) std::swap(inputs_, targets_);
    }
    log(report);
    result_.weights += report.weights;
    result_.removed += report.removed;
    result_.layers.push_back(std::move(report));
  }

  void log(const LayerPruned& one) const {
    std::string line = fmt::format("{}: sparsity={:.4f}", one.name, static_cast<double>(one.removed) / static_cast<double>(one.weights));
    if (!std::isnan(one.error_after))
      line += fmt::format(" error={:.4g} relative={:.4g}", one.error_after, one.error_after / one.output_square);
    if (recovers_) line += fmt::format(" before_repair={:.4g} trained={}", one.error_before, one.trained);
    s_.log.info("{}", line);
  }

  // Runs the dense layer: its outputs are the targets.
  void observe(size_t part, const PartWeights& weights, InputStatistics* statistics, LayerPruned& report) {
    observer_ = statistics;
    double squares = 0;
    each_batch([&](int64_t begin, int64_t count, const mesh::Batch& batch) {
      const at::Tensor out = run_part(*observed_, observed_parts_[part], weights, buffers_, batch, inputs_->read(begin, count));
      targets_->write(begin, out);
      squares += out.square().sum().item<double>();
    });
    observer_ = nullptr;
    if (statistics) statistics->reduce(s_.group);
    report.output_square = mean_over_ranks(squares);
  }

  // The sum over all ranks, of a number for each element of the activations, over their count.
  double mean_over_ranks(double sum) const {
    double both[2] = {sum, static_cast<double>(mine_.length())};
    if (s_.group.size() > 1)
      s_.group.all_reduce({both, 2, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::state, "errors of a layer"}).wait_host();
    const at::Tensor one = inputs_->read(0, 1);
    return both[0] / (both[1] * static_cast<double>(one.numel()));
  }

  // The mean squared difference to the targets. `store`: the outputs become the inputs of the next layer.
  double error_of(size_t part, const PartWeights& weights, bool store) {
    double sum = 0;
    each_batch([&](int64_t begin, int64_t count, const mesh::Batch& batch) {
      const at::Tensor out = run_part(*observed_, observed_parts_[part], weights, buffers_, batch, inputs_->read(begin, count));
      sum += (out - targets_->read(begin, count)).square_().sum().item<double>();
      if (store) inputs_->write(begin, out);
    });
    return mean_over_ranks(sum);
  }

  at::Tensor mask_before(const std::string& weight) const {
    for (const mesh::NamedTensor& one : s_.from.masks)
      if (one.name == weight + model::kMaskSuffix) return one.tensor;
    return {};
  }

  void choose_masks(size_t part, const PartValues& values, const InputStatistics* statistics, LayerPruned& report) {
    const at::NoGradGuard no_grad;
    const bool fan_in_fan_out = model::family(shape_.family).fan_in_fan_out;
    const PruneRule rule{.sparsity = s_.sparsity, .pattern = o_.parsed_pattern(), .by_row = o_.compares_rows()};
    for (const int32_t i : observed_parts_[part].parameters) {
      const model::Parameter& parameter = observed_->parameters()[static_cast<size_t>(i)];
      if (!is_pruned(parameter.name)) continue;
      const at::Tensor stored = values.find(parameter.name), w = fan_in_fan_out ? stored.t().contiguous() : stored;  // [out, in]
      at::Tensor before;
      if (const at::Tensor bits = mask_before(parameter.name); bits.defined()) {
        before = model::unpack_mask(bits.to(s_.device), parameter.shape[1]);
        if (fan_in_fan_out) before = before.t();
      }
      at::Tensor kept;
      if (s_.sparsity == 0) {
        kept = before.defined() ? before : at::ones(w.sizes(), w.options().dtype(at::kBool));
      } else if (o_.method == PruneMethod::sparsegpt) {
        kept = prune_sparsegpt(w, statistics->mean(parameter.name), rule, before);
      } else {
        kept = keep_highest(scores_of(parameter.name, w, statistics), rule, before);
      }
      w.masked_fill_(kept.logical_not(), 0);
      if (fan_in_fan_out) stored.copy_(w.t());
      const at::Tensor bits = model::pack_mask((fan_in_fan_out ? kept.t() : kept).contiguous());
      if (writer_) writer_->masks().write(parameter.name + model::kMaskSuffix, bits);
      buffers_[parameter.name + model::kMaskSuffix] = bits;
      report.weights += kept.numel();
      report.removed += kept.numel() - kept.sum().item<int64_t>();
    }
  }

  at::Tensor scores_of(const std::string& name, const at::Tensor& w, const InputStatistics* statistics) const {
    if (o_.method == PruneMethod::random) return random_scores(w, random_.for_purpose("scores").for_name(name));
    return o_.method == PruneMethod::wanda ? wanda_scores(w, statistics->mean(name)) : magnitude_scores(w);
  }

  // Trains the subset of one layer to reproduce the targets.
  void repair(size_t part, PartValues& values, LayerPruned& report) {
    const ModelPart& of = repaired_parts_[part];
    start_factors(of, values);
    std::vector<bool> chosen;
    for (const mesh::FlatLayout::Piece& piece : values.layout.pieces) chosen.push_back(trained_.contains(piece.name));
    const mesh::FlatLayout trained = mesh::trainable_layout(values.layout, chosen);
    if (trained.pieces.empty()) base::fail_input("prune.recover.train: layer {} has none of these parameters. Add mask_lora.", part - 1);
    report.trained = trained.elements;
    std::vector<int32_t> uses;
    for (size_t i = 0; i < chosen.size(); ++i)
      if (chosen[i]) uses.push_back(repaired_->parameters()[static_cast<size_t>(of.parameters[i])].uses);
    mesh::FlatGradients sum(trained, at::empty({trained.elements}, values.flat.options()), std::move(uses));
    const auto filtered = mesh::make_trainable_gradients(values.layout, chosen, sum);
    PartGradients into(of, *filtered);
    std::vector<optim::ParameterPiece> pieces;
    const mesh::NamedTensors gradients = trained.views(sum.flat());
    for (const mesh::NamedTensor& one : gradients)
      pieces.push_back({.name = one.name, .parameter = values.find(one.name), .gradient = one.tensor, .decays = false});
    const auto optimizer = optim::make_optimizer({.kind = "adamw", .weight_decay = 0}, std::move(pieces));
    const optim::LrSchedule schedule{
        .shape = "linear", .highest = o_.recover.learning_rate, .warmup = o_.recover.warmup, .min_lr_ratio = 0};
    const PartWeights weights(*repaired_, values);
    for (int64_t step = 1; step <= o_.recover.steps; ++step) {
      if (s_.stop.requested()) throw Error(Error::Kind::cancelled, "stopped while layers were repaired: start it again");
      take_gradient(of, weights, step, sum, into);
      const double rate = schedule.learning_rate(static_cast<double>(step) / static_cast<double>(o_.recover.steps));
      optimizer->update_several(0, static_cast<int64_t>(gradients.size()), {.step = step, .learning_rate = rate});
    }
    merge(of, values, weights);
  }

  void start_factors(const ModelPart& of, const PartValues& values) {
    for (const int32_t i : of.parameters) {
      const model::Parameter& one = repaired_->parameters()[static_cast<size_t>(i)];
      if (one.role != model::Parameter::Role::adapter) continue;
      model::initialize_parameter(one, values.find(one.name).view({-1}), random_.for_purpose("factors"));
    }
  }

  // The gradient of mean((out - target)^2) over a batch of every rank's samples.
  void take_gradient(const ModelPart& of, const PartWeights& weights, int64_t step, mesh::FlatGradients& sum, mesh::Gradients& into) {
    const at::NoGradGuard no_grad;
    const int64_t count = std::min(o_.calibration_batch, mine_.length());
    const int64_t batches = std::max<int64_t>(1, mine_.length() / std::max<int64_t>(1, count));
    sum.begin(count > 0 ? 1 : 0, {});
    double samples = static_cast<double>(count);
    if (count > 0) {
      const int64_t epoch = (step - 1) / batches, place = (step - 1) % batches;
      const auto shift = static_cast<int64_t>(
          random_.for_purpose("batches").below(static_cast<uint64_t>(epoch), static_cast<uint64_t>(mine_.length() - batches * count + 1)));
      const int64_t begin = shift + place * count;
      back_propagate(of, weights, begin, count, into);
    }
    sum.finish();
    if (s_.group.size() == 1) return;
    // Each rank's gradient is of a mean over its batch: weighted by samples.
    sum.flat().mul_(samples);
    s_.group.all_reduce(sum.flat(), comm::Reduce::sum, {comm::Purpose::gradient, "a layer"}).wait();
    s_.group.all_reduce({&samples, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "samples"}).wait_host();
    sum.flat().div_(samples);
  }

  void back_propagate(const ModelPart& of, const PartWeights& weights, int64_t begin, int64_t count, mesh::Gradients& into) {
    const auto& blocks = repaired_->blocks();
    const mesh::Axes alone;
    const model::Call call{.weights = weights, .buffers = buffers_, .axes = alone, .random = {}, .needs = {}};
    model::Values values;
    const mesh::Batch batch = s_.batches(mine_.begin + begin, count);
    for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
    const std::string reads = blocks[of.first]->card().reads.front(), writes = blocks[of.last - 1]->card().writes.front();
    values.put(reads, inputs_->read(begin, count));
    std::vector<model::Saved> saved(of.last - of.first);
    for (size_t i = of.first; i < of.last; ++i) blocks[i]->forward(values, &saved[i - of.first], call);
    at::Tensor gradient = values.take(writes) - targets_->read(begin, count);
    gradient.mul_(2.0 / static_cast<double>(gradient.numel()));
    model::Values gradients;
    gradients.add(writes, gradient);
    for (size_t i = of.last; i-- > of.first;) {
      blocks[i]->backward_input(gradients, saved[i - of.first], call);
      blocks[i]->backward_weight(std::move(saved[i - of.first]), into, call);
    }
  }

  // The weights that the layers multiply by take the place of the stored ones.
  void merge(const ModelPart& of, const PartValues& values, const PartWeights& weights) {
    const at::NoGradGuard no_grad;
    const mesh::Axes alone;
    const model::Call call{.weights = weights, .buffers = buffers_, .axes = alone};
    for (size_t i = of.first; i < of.last; ++i)
      for (const model::BlockOp& operation : repaired_->blocks()[i]->card().operations)
        for (const std::shared_ptr<const model::WeightForm>& form : operation.forms) {
          const std::string& name = form->dense_parameter().name;
          at::Tensor dense = form->dense(call);
          if (adapter_.rank > 0) dense = dense + lora_of(name, values);
          const at::Tensor kept = model::unpack_mask(buffers_.at(name + model::kMaskSuffix), dense.size(1));
          values.find(name).copy_(dense.masked_fill(kept.logical_not(), 0));
        }
  }

  // What the adapter of a layer adds, in the weight's layout.
  at::Tensor lora_of(const std::string& weight, const PartValues& values) const {
    const std::string at = weight.substr(0, weight.rfind('.'));
    const at::Tensor a = values.find(at + ".lora_A.weight"), b = values.find(at + ".lora_B.weight");
    const at::Tensor product = at::mm(b, a) * adapter_.scale();
    return model::family(shape_.family).fan_in_fan_out ? product.t() : product;
  }

  // What will be read from the files is what the next layers see.
  void round_to_files(size_t part, const PartValues& values) const {
    const at::NoGradGuard no_grad;
    for (const int32_t i : observed_parts_[part].parameters) {
      const std::string& name = observed_->parameters()[static_cast<size_t>(i)].name;
      if (dtypes_.at(name) == at::kFloat) continue;
      const at::Tensor value = values.find(name);
      value.copy_(value.to(dtypes_.at(name)));
    }
  }

  const LayerwiseSetup& s_;
  const PruneOptions& o_;
  bool recovers_;
  model::DecoderShape shape_;
  base::Random random_;
  InputStatistics* observer_ = nullptr;  // what the observed model reports to
  std::unique_ptr<model::Model> observed_, repaired_;
  std::vector<std::string> weights_;  // that are pruned
  mutable std::vector<std::string> sorted_;
  model::AdapterShape adapter_;
  std::set<std::string> trained_;
  std::vector<ModelPart> observed_parts_, repaired_parts_;
  model::Buffers buffers_;
  mesh::Interval mine_;  // of the samples
  std::unique_ptr<ActivationStore> inputs_, targets_;
  std::map<std::string, at::ScalarType> dtypes_;  // in the files
  std::set<int32_t> written_;
  std::optional<PrunedModelWriter> writer_;
  LayerwiseResult result_;
};

}  // namespace

LayerwiseResult prune_layerwise(const LayerwiseSetup& setup) { return Layerwise(setup).run(); }

}  // namespace cairn::study
