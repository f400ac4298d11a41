// config.json of convolutional networks (model.kind = "cnn"): the sizes that a directory with weights needs beside it.
#pragma once
#include <string>

#include "model/vision/conv_net.h"

namespace cairn::model {

std::string format_conv_config(const ConvNetShape& shape);
// `file` is its name for messages. Refuses what is no such configuration.
ConvNetShape parse_conv_config(const std::string& text, const std::string& file);

}  // namespace cairn::model
