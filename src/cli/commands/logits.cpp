// `cairn logits`: what a model says of given tokens, for checks against other programs (tools/check_families.py).
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"
#include "snapshot/pretrained.h"

namespace cairn::cli {

int logits_command(const LogitsArguments& a) {
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.level = base::Level::warn, .terminal = terminal, .file = {}});
  const snapshot::Pretrained opened = snapshot::open_pretrained(a.folder, log);
  snapshot::check_reads_text(a.folder, opened.shape);
  const auto length = static_cast<int64_t>(a.ids.size());
  if (length > opened.shape.length) base::fail_input("--ids: {} tokens, and the model reads at most {}", length, opened.shape.length);
  for (int64_t id : a.ids)
    if (id < 0 || id >= opened.shape.vocab) base::fail_input("--ids: {} is not in the vocabulary of {}", id, opened.shape.vocab);
  model::DecoderShape shape = opened.shape;
  shape.table_length = length;
  const auto decoder = model::make_decoder(shape, opened.unmerged_adapter());
  const model::FlatWeights weights(decoder->layout(), at::empty({decoder->elements()}));
  opened.load_into(weights.layout().views(weights.flat()));
  model::Buffers buffers = decoder->make_buffers(at::kFloat);
  at::NoGradGuard no_grad;
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
  model::Values values;
  values.put("tokens", at::tensor(a.ids, at::kLong).view({1, -1}));
  for (const auto& block : decoder->blocks()) block->forward(values, nullptr, call);
  const at::Tensor logits = values.take("logits").contiguous();
  base::OrderedJson rows = base::OrderedJson::array();
  for (int64_t i = 0; i < length; ++i) {
    const float* row = logits.const_data_ptr<float>() + i * opened.shape.vocab;
    rows.push_back(std::vector<float>(row, row + opened.shape.vocab));
  }
  terminal->line(base::compact(base::OrderedJson{{"logits", rows}}));
  return 0;
}

}  // namespace cairn::cli
