#include <functional>

#include "base/log.h"
#include "comm/world.h"
#include "data/chat/model_files.h"
#include "data/corpus/tokenize_progress.h"
#include "train/build/build_steps.h"
#include "train/model_from.h"

namespace cairn::train {
namespace {

data::OpenedData open_data(comm::World& world, const Settings& settings, const Start& start) {
  data::CorpusOptions options{
      .held_out_fraction = settings.eval.fraction, .cache_folder = start.cache.string(), .threads = start.threads, .progress = {}};
  if (!start.terminal) return data::open_data(settings.data, options, world.log());
  data::TokenizeProgress progress(*start.terminal, world.wall());
  options.progress = std::ref(progress);
  data::OpenedData opened = data::open_data(settings.data, options, world.log());
  progress.finish();
  return opened;
}

// Adds the chat template and the special tokens to the files that go into every snapshot.
void carry_chat_files(Job& job, const std::optional<snapshot::Pretrained>& pretrained) {
  if (!job.data.chat) return;
  data::SpecialTokenIds ends{.eos = {job.data.tokenizer->end_of_text()}};
  if (pretrained && !pretrained->shape.tokens.eos.empty())
    ends = {pretrained->shape.tokens.bos, pretrained->shape.tokens.pad, pretrained->shape.tokens.eos};
  data::put_chat_files(*job.data.chat, *job.data.tokenizer, ends, job.carried);
}

}  // namespace

std::optional<snapshot::Pretrained> open_inputs(Job& job, comm::World& world, const Start& start) {
  job.data = open_data(world, job.config.settings, start);
  std::optional<snapshot::Pretrained> pretrained = open_model_from(job, world.log());
  carry_chat_files(job, pretrained);
  return pretrained;
}

}  // namespace cairn::train
