// MoSA on one GPU, with a transformer of the size of ViT-B/16: what its two passes cost in training, and that decoding the merged adapter
// costs nothing.
#include <cmath>
#include <filesystem>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/files/disk.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "mesh/trainable_gradients.h"
#include "model/decoder/decoder.h"
#include "model/losses/consistency.h"
#include "model/model.h"
#include "model/trainable.h"
#include "parallel/pass.h"
#include "proofs/gpu_runs.h"
#include "snapshot/adapter.h"
#include "study/claims.h"
#include "train/step_passes.h"

namespace cairn::study {
namespace {

constexpr int64_t kBatch = 128;

// A transformer of pictures with random weights in bf16, adapters, and a batch.
class GpuVit {
 public:
  GpuVit(const ProofOptions& options, const model::AdapterShape& adapter)
      : shape_({.vocab = 1000,
                .embed = 768,
                .layers = 12,
                .heads = 12,
                .kv_heads = 12,
                .head_dim = 64,
                .mlp = 3072,
                .length = 197,
                .tied = false,
                .family = "vit",
                .qkv_bias = true,
                .out_bias = true,
                .mlp_bias = true,
                .pictures = {.channels = 3, .size = 224, .patch = 16}}),
        model_(model::make_decoder(shape_, adapter)),
        adapter_(adapter),
        layout_(model_->layout()),
        flat_(at::empty({layout_.elements}, at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16))),
        weights_(layout_, flat_),
        trained_(model::trainable(*model_, {})),
        trained_layout_(mesh::trainable_layout(layout_, trained_)),
        buffers_(model_->make_buffers(at::TensorOptions().device(at::kCUDA).dtype(at::kFloat))),
        own_(model::make_classification()) {
    model::initialize_parameters(*model_, flat_, base::Random(options.seed));
    const auto on_gpu = at::TensorOptions().device(at::kCUDA);
    batch_.ids = at::arange(kBatch, on_gpu.dtype(at::kLong));
    batch_.fields["pixels"] = {at::zeros({kBatch, 3, 224, 224}, on_gpu.dtype(at::kFloat)).normal_(0, 1)};
    batch_.fields["labels"] = {at::arange(kBatch, on_gpu.dtype(at::kLong))};
    std::vector<int32_t> uses;
    const std::vector<int32_t> all = model_->uses();
    for (size_t i = 0; i < all.size(); ++i)
      if (trained_[i]) uses.push_back(all[i]);
    sums_ = std::make_unique<mesh::FlatGradients>(trained_layout_, at::zeros({trained_layout_.elements}, on_gpu.dtype(at::kFloat)), uses);
    sink_ = mesh::make_trainable_gradients(layout_, trained_, *sums_);
  }

  const model::DecoderShape& shape() const { return shape_; }

  // The passes of one step.
  double step_s(bool two) {
    const auto first = model::make_consistency(own_, {.own = 1, .agreement = 0.5});
    const auto second = model::make_consistency(own_, {.own = 0, .agreement = 0.5});
    std::vector<train::WeightedPass> list{train::WeightedPass{.objective = own_.get()}};
    if (two)
      list = {{.objective = first.get(), .reads = {{.pass = 1, .as = model::kOtherLogits}}},
              {.objective = second.get(), .draw = 1, .reads = {{.pass = 0, .as = model::kOtherLogits}}}};
    return gpu_seconds([&] {
      sums_->begin(two ? 2 : 1, {}, /*some_leave_out=*/true);
      const parallel::Pass pass = of_batch(sink_.get());
      train::run_passes(list, {}, {&pass, 1});
      sums_->finish();
    });
  }

  double evaluation_s() {
    return gpu_seconds([&] { parallel::execute(of_batch(nullptr)); });
  }
  double evaluation_loss() { return parallel::execute(of_batch(nullptr)).sum.item<double>() / kBatch; }

  // Moves the adapter against the gradient of the last step, so that its modules hold different things.
  void descend(double rate) {
    const at::NoGradGuard no_grad;
    const mesh::NamedTensors values = layout_.views(flat_);
    for (const mesh::NamedTensor& gradient : trained_layout_.views(sums_->flat()))
      for (const mesh::NamedTensor& value : values)
        if (value.name == gradient.name) value.tensor.sub_(gradient.tensor.to(at::kBFloat16), rate);
  }

  // The adapter, as a run's snapshot has it.
  snapshot::Adapter adapter() const {
    snapshot::Adapter found{.shape = adapter_, .tensors = {}};
    const mesh::NamedTensors values = layout_.views(flat_);
    for (size_t i = 0; i < values.size(); ++i)
      if (model_->parameters()[i].role == model::Parameter::Role::adapter)
        found.tensors.push_back({values[i].name, values[i].tensor.to(at::kCPU, at::kFloat)});
    return found;
  }
  // Takes an exported adapter, and the batch of another.
  void load(const snapshot::Adapter& read, const GpuVit& other) {
    const at::NoGradGuard no_grad;
    flat_.zero_();  // nothing may be left of the initial values
    for (const mesh::NamedTensor& to : layout_.views(flat_))
      for (const mesh::NamedTensor& from : other.layout_.views(other.flat_))
        if (to.name == from.name) to.tensor.copy_(from.tensor);
    mesh::NamedTensors parameters = layout_.views(flat_);
    snapshot::load_unmerged(read, parameters);
    batch_ = other.batch_;
  }

 private:
  parallel::Pass of_batch(mesh::Gradients* into) {
    return {.model = *model_,
            .at = weights_,
            .buffers = buffers_,
            .axes = alone_,
            .batch = batch_,
            .objective = *own_,
            .into = into,
            .weight = 1.0 / kBatch,
            .random = base::Random(1),
            .options = options_};
  }

  model::DecoderShape shape_;
  std::unique_ptr<model::Model> model_;
  model::AdapterShape adapter_;
  mesh::FlatLayout layout_;
  at::Tensor flat_;
  model::FlatWeights weights_;
  std::vector<bool> trained_;
  mesh::FlatLayout trained_layout_;
  model::Buffers buffers_;
  std::shared_ptr<const model::Objective> own_;
  mesh::Axes alone_;
  mesh::Batch batch_;
  model::PassOptions options_{.draws_by_token = true};
  std::unique_ptr<mesh::FlatGradients> sums_;
  std::unique_ptr<mesh::Gradients> sink_;
};

}  // namespace

void prove_mosa_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  model::AdapterShape adapter{.rank = 64, .dropout = 0.1, .kind = model::AdapterKind::bottleneck};
  adapter.style = model::AdapterStyle::adaptformer;
  model::AdapterShape in_modules = adapter;
  in_modules.kind = model::AdapterKind::mosa, in_modules.modules = 4;
  GpuVit ordinary(options, adapter), modules(options, in_modules);
  const double plain = ordinary.step_s(false), one = modules.step_s(false), two = modules.step_s(true);
  log.info("passes of a step of {} pictures: adapter {:.2f} ms, MoSA with one pass {:.2f} ms, with two {:.2f} ms", kBatch, plain * 1e3,
           one * 1e3, two * 1e3);
  findings.at_most("H200. ViT-B/16, bf16: time of a step's passes with the consistency term, to the ordinary adapter's", plain, two / plain,
                   2.1);
  findings.at_most("H200. the same without it", plain, one / plain, 1.05);
  // What was trained in modules, exported and loaded as anybody would: its time and its answers.
  modules.descend(1e-3);
  const std::string folder = (std::filesystem::path(options.scratch) / "folded").string();
  snapshot::write_adapter(folder, modules.adapter(), modules.shape(), "the model", base::real_disk());
  const snapshot::Adapter read = snapshot::read_adapter(folder);
  GpuVit folded(options, read.shape);
  folded.load(read, modules);
  log.info("loss with the modules {:.4f}, with the exported adapter {:.4f} (reported: bf16)", modules.evaluation_loss(),
           folded.evaluation_loss());
  const double before = ordinary.evaluation_s(), after = folded.evaluation_s();
  findings.at_most("H200. inference with the merged adapter, to the ordinary one: relative difference of the time", before,
                   std::abs(after / before - 1), 0.01);
}

}  // namespace cairn::study
