// The recipe's model.cnn.* keys: convolutional networks for pictures.
#pragma once
#include <cstdint>
#include <vector>

#include "base/schema.h"

namespace cairn::model {

struct ConvOptions {
  std::vector<int64_t> widths = {16, 32, 64};
  std::vector<int64_t> depths = {2, 2, 2};
  int64_t expand = 4;
  int64_t kernel = 3;

  bool operator==(const ConvOptions&) const = default;
};

base::Schema<ConvOptions> conv_schema();

}  // namespace cairn::model
