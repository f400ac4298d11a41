#include "base/text.h"
#include "kernels/aten.h"
#include "model/generate/generate.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/state/full_state.h"

namespace cairn::train {
namespace {

// All parameters in one contiguous tensor, in this order. If they are contiguous already no copy is made: a full GPU has no memory for one.
at::Tensor in_one_piece(const mesh::NamedTensors& parameters, const mesh::FlatLayout& layout) {
  const at::Tensor& first = parameters.front().tensor;
  bool lie_so = true;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& one = parameters[i].tensor;
    lie_so = lie_so && one.is_contiguous() && one.storage().is_alias_of(first.storage()) &&
             one.storage_offset() == first.storage_offset() + layout.pieces[i].offset;
  }
  if (lie_so) return first.as_strided({layout.elements}, {1}, first.storage_offset());
  const at::Tensor flat = at::empty({layout.elements}, first.options());
  const mesh::NamedTensors views = layout.views(flat);
  for (size_t i = 0; i < parameters.size(); ++i) views[i].tensor.copy_(parameters[i].tensor);
  return flat;
}

}  // namespace

std::vector<ReportData::Sample> write_samples(Job& job) {
  if (job.config.settings.log.samples == 0 || job.config.settings.data.needs().retrieval) return {};  // encoders write nothing
  if (job.config.settings.layout.memory.parameters != memory::TierKind::device) return {};            // they do not fit in one piece
  const mesh::NamedTensors parameters = gather_whole(job, model_state(job));
  if (!job.config.writes) return {};
  std::vector<ReportData::Sample> samples;
  const data::Tokenizer& tokenizer = *job.data.tokenizer;
  std::vector<int32_t> prompt = tokenizer.encode(job.config.settings.log.prompt);
  const std::vector<int32_t> prefix = data::text_prefix(tokenizer, /*trained_here=*/true);
  prompt.insert(prompt.begin(), prefix.begin(), prefix.end());
  if (static_cast<int64_t>(prompt.size()) >= job.data.length)  // no space for an answer; the run is done and must not fail here
    return {static_cast<size_t>(job.config.settings.log.samples), ReportData::Sample{job.config.settings.log.prompt, ""}};
  const base::Random random = base::Random(static_cast<uint64_t>(job.config.settings.train.seed)).for_purpose("samples");
  std::vector<model::GenerateRequest> requests;
  for (int64_t i = 0; i < job.config.settings.log.samples; ++i) requests.push_back({prompt, random.for_index(static_cast<uint64_t>(i))});
  const model::GenerateOptions options{.tokens = job.data.length,
                                       .length_max = job.data.length,
                                       .vocab = tokenizer.vocab_size(),
                                       .sampling = {.temperature = 0.6},
                                       .stops = {tokenizer.end_of_text()}};
  const mesh::FlatLayout layout = job.engine.model->layout();
  const model::FlatWeights weights(layout, in_one_piece(parameters, layout));
  for (const model::GeneratedText& text : model::generate(*job.engine.model, weights, job.engine.buffers, requests, options))
    samples.push_back({job.config.settings.log.prompt, base::valid_utf8(tokenizer.decode(text.ids))});
  return samples;
}

}  // namespace cairn::train
