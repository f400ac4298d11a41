#include "model/vision/options.h"

namespace cairn::model {

base::Schema<ConvOptions> conv_schema() {
  using O = ConvOptions;
  return {"model.cnn",
          "A convolutional network (model.kind = \"cnn\"): stages of inverted residual layers.",
          {{"widths", &O::widths, "Channels of each stage. Every stage but the first halves height and width.", base::between(1, 1 << 20)},
           {"depths", &O::depths, "Layers of each stage.", base::between(1, 10000)},
           {"expand", &O::expand, "Channels in the middle of a layer, as a multiple of those that it reads.", base::between(1, 1024)},
           {"kernel", &O::kernel, "Side of the convolutions, an odd number; 1: none looks at neighbours (a residual MLP).",
            base::between(1, 31)}}};
}

}  // namespace cairn::model
