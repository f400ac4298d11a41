#include "parallel/activations/kept_input.h"

#include <utility>

#include "kernels/aten.h"

namespace cairn::parallel {

void KeptInput::convert(const StreamParts& parts, StreamForm form, int64_t tokens, std::string_view what) {
  if (form == form_ || host_ || !value_.tensor.defined()) return;
  value_.ready.wait();
  form_ = form;
  shape_ = value_.tensor.sizes().vec();
  value_.tensor = parts.to_form(value_.tensor, form, tokens, what);
}

void KeptInput::offload() {
  if (host_ || !value_.tensor.defined()) return;
  value_.ready.wait();
  host_.emplace(std::exchange(value_.tensor, {}));
}

void KeptInput::release_device() {
  if (host_) host_->release_device();
}

void KeptInput::fetch() {
  if (host_) host_->fetch();
}

model::Value KeptInput::take(const StreamParts& parts, std::string_view what) {
  if (host_) value_.tensor = host_->take();
  host_.reset();
  if (form_ != StreamForm::same) value_.tensor = parts.from_form(value_.tensor, form_, shape_, what);
  form_ = StreamForm::same;
  return std::move(value_);
}

int64_t KeptInput::device_bytes() const { return value_.tensor.defined() ? static_cast<int64_t>(value_.tensor.nbytes()) : 0; }

}  // namespace cairn::parallel
