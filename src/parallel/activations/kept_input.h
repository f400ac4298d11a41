#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/values.h"
#include "parallel/activations/host_offload.h"
#include "parallel/activations/stream_parts.h"

namespace cairn::parallel {

// A value that recomputation reads, kept from forward until then: on the device or in host memory, whole or this rank's part of it.
class KeptInput {
 public:
  explicit KeptInput(model::Value value) : value_(std::move(value)) {}

  // Changes the form, once it has arrived.
  void convert(const StreamParts& parts, StreamForm form, int64_t tokens, std::string_view what);
  // Starts to copy it to host memory. release_device frees the device memory; later work of the device waits for the copy.
  void offload();
  void release_device();
  void fetch();  // starts the copy back
  // What blocks read, in the form in which they read it.
  model::Value take(const StreamParts& parts, std::string_view what);
  int64_t device_bytes() const;

 private:
  model::Value value_;
  StreamForm form_ = StreamForm::same;
  std::vector<int64_t> shape_;       // of what blocks read
  std::optional<HostOffload> host_;  // its tensor, where it is offloaded
};

using KeptInputs = std::map<std::string, KeptInput>;

}  // namespace cairn::parallel
