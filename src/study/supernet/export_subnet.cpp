#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files/disk.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "model/decoder/decoder.h"
#include "model/needs.h"
#include "model/supernet/extract.h"
#include "model/vision/conv_config.h"
#include "snapshot/pretrained.h"
#include "study/supernet/supernet_run.h"
#include "train/job.h"
#include "train/state/full_state.h"
#include "train/supernet/calibrate.h"

namespace cairn::study {
namespace {

snapshot::ExportOptions export_options(const std::string& dtype) {
  if (dtype == "fp32") return {.dtype = c10::ScalarType::Float};
  if (dtype == "bf16") return {.dtype = c10::ScalarType::BFloat16};
  if (dtype == "fp16") return {.dtype = c10::ScalarType::Half};
  base::fail_input("--dtype {}: must be fp32, bf16 or fp16", dtype);
}

model::Subnet trained_subnet(const std::string& text, const train::SubnetSpace& space) {
  const model::Subnet subnet = model::parse_subnet(text, space.shape);
  model::check_trained(subnet, space.shape, space.choices);
  return subnet;
}

std::string written(const std::string& text, const model::Subnet& subnet, const model::ElasticShape& shape, const std::string& out,
                    int64_t parameters) {
  return fmt::format("subnet {}: {} parameters, {} FLOPs (the whole network has {}), in {}", text,
                     base::human_count(static_cast<double>(parameters)), base::human_count(flops_of(subnet, shape)),
                     base::human_count(flops_of(model::whole_subnet(shape), shape)), out);
}

int64_t elements_of(const mesh::NamedTensors& tensors) {
  int64_t all = 0;
  for (const mesh::NamedTensor& one : tensors) all += one.tensor.numel();
  return all;
}

// From the newest snapshot: there is nothing to calibrate.
std::string export_transformer(const SupernetRun& from, const model::SupernetOptions& options, const std::string& text,
                               const std::string& out, const std::string& dtype, base::Log& log) {
  const snapshot::Pretrained opened = snapshot::open_pretrained(from.run.string(), log);
  const auto whole = model::make_decoder(opened.shape);
  train::SubnetSpace space{.shape = whole->elastic(), .choices = {}, .sampling = options.sampling};
  space.choices = model::subnet_choices(options, space.shape);
  const model::Subnet subnet = trained_subnet(text, space);
  const at::Tensor flat = at::empty({whole->elements()});
  const mesh::NamedTensors tensors = whole->layout().views(flat);
  opened.load_into(tensors);
  const mesh::NamedTensors extracted = model::extract(subnet, space.shape, tensors);
  snapshot::write_pretrained(out, model::extract(subnet, opened.shape), extracted, opened.texts, export_options(dtype), base::real_disk());
  return written(text, subnet, space.shape, out, elements_of(extracted)) + "; it has no batch norms to calibrate";
}

std::string export_conv_net(comm::World& world, const SupernetRun& from, const std::string& text, const std::string& out,
                            const std::string& dtype) {
  const std::unique_ptr<train::Job> job = open_supernet(world, from);
  const model::ConvNetShape* shape = model::conv_net_shape(*job->engine.model);
  const train::SubnetSpace space = train::subnet_space(*job);
  const model::Subnet subnet = trained_subnet(text, space);
  const int64_t samples = job->config.settings.model.supernet.calibration_samples;
  const train::ScopedSubnet calibrated(*job, subnet, samples);
  mesh::NamedTensors whole;
  for (const train::StateTensor& one : train::parameter_state(*job)) whole.push_back({one.name, one.mine.view(one.shape)});
  for (const mesh::NamedTensor& one : model::running_buffers(job->engine.buffers)) whole.push_back(one);
  const mesh::NamedTensors extracted = model::extract(subnet, space.shape, whole);
  const std::map<std::string, std::string> texts{{"config.json", model::format_conv_config(model::extract(subnet, space.shape, *shape))}};
  snapshot::write_model_folder(out, extracted, texts, export_options(dtype), base::real_disk());
  return written(text, subnet, space.shape, out, elements_of(extracted)) +
         fmt::format("; its batch norms are calibrated on {} samples", samples);
}

}  // namespace

std::string export_subnet(comm::World& world, const SupernetRun& from, const std::string& subnet, const std::string& out,
                          const std::string& dtype, base::Log& log) {
  const train::Settings settings = supernet_settings(from);
  if (model::needs_of(settings.model.kind).running_statistics) return export_conv_net(world, from, subnet, out, dtype);
  return export_transformer(from, settings.model.supernet, subnet, out, dtype, log);
}

}  // namespace cairn::study
