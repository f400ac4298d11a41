#include <chrono>
#include <functional>

#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/chat/model_files.h"
#include "data/corpus/tokenize_progress.h"
#include "data/tokenizer/declared_tokens.h"
#include "train/build/build_steps.h"
#include "train/model_from.h"

namespace cairn::train {
namespace {

data::OpenedData open_data(comm::World& world, const Settings& settings, const Start& start) {
  data::CorpusOptions options{.held_out_fraction = settings.eval.fraction,
                              .cache_folder = start.cache.string(),
                              .threads = start.threads,
                              .progress = {},
                              .stop = start.stop,
                              .seed = static_cast<uint64_t>(settings.train.seed)};
  if (!start.terminal) return data::open_data(settings.data, options, world.log());
  data::TokenizeProgress progress(*start.terminal, world.wall());
  options.progress = std::ref(progress);
  data::OpenedData opened = data::open_data(settings.data, options, world.log());
  progress.finish();
  return opened;
}

// Ranks that do not share a cache need different times to tokenise a large text. The first collective after it would fail at its deadline,
// so they meet here. A rank that dies or stands still meanwhile is found by its heartbeat, not by the deadline.
void wait_for_data(comm::World& world, const comm::Group& step_group, const base::Stop* stop) {
  constexpr auto kDeadline = std::chrono::hours(24 * 30);
  if (step_group.size() == 1) return;
  comm::Group& group = world.group(step_group.ranks(), "data");
  group.set_deadline(kDeadline);
  try {
    group.barrier("the data").wait();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::lost_peer || !stop || !stop->requested()) throw;
    throw Error(Error::Kind::cancelled, "stopped while other ranks were reading the data");  // they have stopped for the same reason
  }
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
  try {
    job.data = open_data(world, job.config.settings, start);
    wait_for_data(world, *job.engine.step_group, start.stop);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::cancelled) throw;
    throw Error(error).with(kBeforeFirstStep);
  }
  std::optional<snapshot::Pretrained> pretrained = open_model_from(job, world.log());
  data::put_tokenizer_files(job.config.settings.data.tokenizer_file, job.carried);
  carry_chat_files(job, pretrained);
  return pretrained;
}

}  // namespace cairn::train
