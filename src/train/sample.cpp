#include "train/sample.h"

#include "model/generate.h"
#include "train/build.h"

namespace cairn::train {

std::vector<ReportData::Sample> write_samples(Job& job) {
  std::vector<ReportData::Sample> samples;
  const data::Tokenizer& tokenizer = *job.data.tokenizer;
  std::vector<int32_t> prompt = tokenizer.encode(job.settings.log.prompt);
  prompt.insert(prompt.begin(), tokenizer.end_of_text());  // a document begins after the end of another
  const base::Random random = base::Random(static_cast<uint64_t>(job.settings.train.seed)).for_purpose("samples");
  for (int64_t i = 0; i < job.settings.log.samples; ++i) {
    const model::Generated text = model::generate(*job.engine.model, *job.engine.weights, job.engine.buffers, prompt,
                                                  {.tokens = job.data.length,
                                                   .length_max = job.data.length,
                                                   .temperature = 0.6,
                                                   .stop = tokenizer.end_of_text(),
                                                   .random = random.for_index(static_cast<uint64_t>(i))});
    samples.push_back({job.settings.log.prompt, tokenizer.decode(text.ids)});
  }
  return samples;
}

}  // namespace cairn::train
