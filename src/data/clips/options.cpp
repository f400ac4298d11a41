#include "data/clips/options.h"

namespace cairn::data {

base::Schema<ClipOptions> clip_schema() {
  using O = ClipOptions;
  return {"clips",
          "Short videos with labels (data.kind = \"clips\"): generated, or raw bytes in data.path.",
          {{"frames", &O::frames, "Frames of a clip.", base::between(1, 4096)},
           {"size", &O::size, "Height and width of a frame in pixels.", base::between(4, 4096)},
           {"classes", &O::classes, "Classes.", base::between(2, 100000)},
           {"count", &O::count, "Generated clips to train on.", base::between(1, 1e9)},
           {"held_out", &O::held_out, "Generated clips to evaluate on.", base::between(1, 1e9)},
           {"noise", &O::noise, "Strength of the noise of generated clips.", base::at_least(0)},
           {"flip", &O::flip,
            "Mirrors half of the clips of data.path that a step trains on, where the sampler changes their shape. Leave it out where left "
            "and right matter; generated clips are never mirrored."}}};
}

}  // namespace cairn::data
