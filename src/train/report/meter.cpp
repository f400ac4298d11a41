#include "train/report/meter.h"

#include <ATen/core/IListRef.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/memory_tags.h"
#include "kernels/aten.h"

namespace cairn::train {

struct Meter::Pending {
  int64_t step;
  at::Tensor numbers;                 // doubles on the host: loss, gradient norm, measures
  std::unique_ptr<c10::Event> there;  // when the copy is complete; null: at once
};

namespace {

std::unique_ptr<c10::Event> recorded_event(const at::Device& device) {
  auto event = std::make_unique<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

Meter::Meter(const at::Device& device, std::function<bool()> meanwhile) : device_(device), meanwhile_(std::move(meanwhile)) {}
Meter::~Meter() = default;

void Meter::add(int64_t step, const StepOutput& output) {
  at::Tensor numbers = at::stack({output.loss_sum.to(at::kDouble), output.gradient_norm.to(at::kDouble)});
  if (output.measures.defined()) numbers = at::cat(std::vector<at::Tensor>{numbers, output.measures.to(at::kDouble)});
  if (device_.is_cpu()) {
    pending_.push_back({step, numbers, nullptr});
    return;
  }
  const at::Tensor host = at::empty({numbers.size(0)}, at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
  host.copy_(numbers, /*non_blocking=*/true);
  pending_.push_back({step, host, recorded_event(device_)});
}

void Meter::restart() {
  if (last_read_) last_read_ = recorded_event(device_);
}

std::optional<Reading> Meter::take(bool all) {
  const size_t may_stay = device_.is_cpu() || all || !last_read_ ? 0 : 1;
  if (pending_.size() <= may_stay) return std::nullopt;
  Pending& oldest = pending_.front();
  if (oldest.there) {  // the event of the previous step: the device is at work on the next one
    while (meanwhile_ && !oldest.there->query() && meanwhile_()) continue;
    oldest.there->synchronize();
  }
  const double* numbers = oldest.numbers.const_data_ptr<double>();
  Reading reading{oldest.step, numbers[0], numbers[1], {numbers + 2, numbers + oldest.numbers.size(0)}};
  if (last_read_) reading.seconds = last_read_->elapsedTime(*oldest.there) / 1e3;
  last_read_ = std::move(oldest.there);
  pending_.pop_front();
  return reading;
}

namespace {

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::CachingDeviceAllocator::DeviceStats statistics(const at::Device& device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

}  // namespace

int64_t memory_in_use(const at::Device& device) {
  return device.is_cpu() ? base::resident_bytes() : statistics(device).reserved_bytes[kAll].current;
}

int64_t memory_of_tensors_most(const at::Device& device) { return device.is_cpu() ? 0 : statistics(device).allocated_bytes[kAll].peak; }

}  // namespace cairn::train
