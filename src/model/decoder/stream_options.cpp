#include "model/decoder/stream_options.h"

#include "base/check.h"
#include "model/decoder/shape.h"
#include "model/families/families.h"

namespace cairn::model {

base::Schema<StreamOptions> stream_schema() {
  using O = StreamOptions;
  return {
      "model.parscale",
      "ParScale: the model runs several times side by side, each stream with learned prefixes, and a mixer joins their outputs.",
      {{"streams", &O::streams, "Streams; 1: the plain model.", base::between(1, kStreamsMax), {"parscale_n"}},
       {"prefix_tokens",
        &O::prefix_tokens,
        "Learned keys and values of each stream in every attention layer.",
        base::between(0, kPrefixTokensMax),
        {"parscale_n_tokens"}},
       {"smoothing",
        &O::smoothing,
        "The mixer gives each stream at least smoothing / streams of the weight, so that all of them are trained.",
        base::between(0, 1),
        {"parscale_attn_smooth"}},
       {"train", &O::train, "all: every parameter. adapter: the prefixes and the mixer only; model.from is frozen.",
        base::may_change(base::one_of({"all", "adapter"}))},
       {"start_step", &O::start_step, "Two stages in one run: the plain model is trained up to this step, and the streams from then on.",
        base::may_change(base::between(0, int64_t{1} << 40))},
       {"placement", &O::placement,
        "batch: streams are rows of the batch. axis: each rank along mesh.tp runs a part of the streams with whole layers, which then "
        "exchange nothing.",
        base::may_change(base::one_of({"batch", "axis"}))},
       {"from", &O::from, "A directory of `cairn snapshot export --only-adapter` with prefixes and mixer to start from. Empty: new ones.",
        base::may_change(base::path())}}};
}

void set_streams(DecoderShape& shape, const StreamOptions& o) {
  if (o.streams == 1) {
    shape.streams = {};
    if (o != StreamOptions{})
      base::fail_input(
          "model.parscale.streams = 1: the other keys of model.parscale have no effect. Set it to 2 or more, or leave them out.");
    return;
  }
  if (o.prefix_tokens == 0)
    base::fail_input("model.parscale.prefix_tokens = 0: all {} streams would compute the same. Use 48, or model.parscale.streams = 1.",
                     o.streams);
  if (shape.dropout > 0)
    base::fail_input("model.dropout = {}: streams draw no random numbers of their own. Leave it out, or use model.parscale.streams = 1.",
                     shape.dropout);
  if (shape.pattern)
    base::fail_input(
        "model.parscale.streams = {}: not with model.attention.type = \"s2\": the sparse KV cache has no place for prefixes. Leave one of "
        "them out.",
        o.streams);
  if (family(shape.family).linear_attention)
    base::fail_input(
        "model.parscale.streams = {}: prefixes are keys of softmax attention, which model.kind = \"{}\" does not have in all "
        "layers. Use model.kind = \"llama\".",
        o.streams, shape.family);
  shape.streams = {.count = o.streams, .prefix_tokens = o.prefix_tokens, .smoothing = o.smoothing, .along_tp = o.placement == "axis"};
}

StreamOptions stream_options_of(const DecoderShape& shape, StreamOptions options) {
  if (shape.streams.count == 1) return options;
  options.streams = shape.streams.count;
  options.prefix_tokens = shape.streams.prefix_tokens;
  options.smoothing = shape.streams.smoothing;
  return options;
}

bool is_stream_parameter(std::string_view name) {
  return name.ends_with(".prefix_k") || name.ends_with(".prefix_v") || name.find("aggregate_layer.") != std::string_view::npos;
}

}  // namespace cairn::model
