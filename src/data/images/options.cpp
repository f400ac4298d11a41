#include "data/images/options.h"

namespace cairn::data {

base::Schema<ImageOptions> image_schema() {
  using O = ImageOptions;
  return {"images",
          "Pictures with labels (data.kind = \"images\"): generated textures, PNG and JPEG files in a folder for each class, or arrays.",
          {{"size", &O::size,
            "Height and width in pixels. A picture of another size is scaled until its shorter side fits, and its middle is used.",
            base::between(1, 4096)},
           {"channels", &O::channels, "1: grey values; 3: red, green and blue. Arrays may have any number.", base::between(1, 4096)},
           {"classes", &O::classes, "Classes; 0: those of the folders or labels, or 8 generated ones.", base::between(0, 100000)},
           {"count", &O::count, "Generated pictures to train on.", base::between(1, 1e9)},
           {"held_out", &O::held_out, "Generated pictures to evaluate on.", base::between(1, 1e9)},
           {"noise", &O::noise, "Strength of the noise of generated pictures.", base::at_least(0)},
           {"crop", &O::crop, "Training pictures are moved by up to so many pixels in each direction, with grey at the borders.",
            base::between(0, 1024)},
           {"flip", &O::flip, "Mirrors half of the training pictures. Leave it out where left and right matter."}}};
}

}  // namespace cairn::data
