#include "train/sample.h"

#include "kernels/aten.h"
#include "model/generate.h"
#include "train/build.h"
#include "train/whole_state.h"

namespace cairn::train {

std::vector<ReportData::Sample> write_samples(Job& job) {
  if (job.settings.log.samples == 0) return {};
  const mesh::NamedTensors parameters = gather_whole(job, model_state(job));
  if (!job.writes) return {};
  std::vector<ReportData::Sample> samples;
  const data::Tokenizer& tokenizer = *job.data.tokenizer;
  std::vector<int32_t> prompt = tokenizer.encode(job.settings.log.prompt);
  prompt.insert(prompt.begin(), tokenizer.end_of_text());      // a document begins after the end of another
  if (static_cast<int64_t>(prompt.size()) >= job.data.length)  // no room for an answer: no reason to fail a run that is done
    return {static_cast<size_t>(job.settings.log.samples), ReportData::Sample{job.settings.log.prompt, ""}};
  const base::Random random = base::Random(static_cast<uint64_t>(job.settings.train.seed)).for_purpose("samples");
  std::vector<model::Request> requests;
  for (int64_t i = 0; i < job.settings.log.samples; ++i) requests.push_back({prompt, random.for_index(static_cast<uint64_t>(i))});
  const model::GenerateOptions options{
      .tokens = job.data.length, .length_max = job.data.length, .sampling = {.temperature = 0.6}, .stops = {tokenizer.end_of_text()}};
  const mesh::FlatLayout layout = job.engine.model->layout();
  const model::FlatWeights weights(layout, at::empty({layout.elements}, parameters.front().tensor.options()));
  for (size_t i = 0; i < parameters.size(); ++i) weights.get({static_cast<int32_t>(i)}).copy_(parameters[i].tensor);
  for (const model::Generated& text : model::generate(*job.engine.model, weights, job.engine.buffers, requests, options))
    samples.push_back({job.settings.log.prompt, tokenizer.decode(text.ids)});
  return samples;
}

}  // namespace cairn::train
