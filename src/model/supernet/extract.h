// Cuts a subnet out of a supernet, as a model of its own.
#pragma once
#include "mesh/named_tensor.h"
#include "model/decoder/shape.h"
#include "model/supernet/elastic_shape.h"
#include "model/supernet/options.h"
#include "model/vision/conv_net.h"

namespace cairn::model {

// The tensors of the subnet, copied: prefixes of `whole` (parameters and running statistics), without those of layers that do not run.
mesh::NamedTensors extract(const Subnet& subnet, const ElasticShape& shape, const mesh::NamedTensors& whole);
// The shape of the model that they belong to.
DecoderShape extract(const Subnet& subnet, DecoderShape shape);
ConvNetShape extract(const Subnet& subnet, const ElasticShape& elastic, const ConvNetShape& shape);

// Refuses a subnet that was never trained: depths and widths that are not among the choices.
void check_trained(const Subnet& subnet, const ElasticShape& shape, const SubnetChoices& choices);

}  // namespace cairn::model
