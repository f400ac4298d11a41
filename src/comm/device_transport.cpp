// Polls device jobs while a rank waits on the host transport.
#include "comm/device_transport.h"

#include <algorithm>
#include <utility>

#include "comm/forwarding_transport.h"

namespace cairn::comm {
namespace {

using std::chrono::nanoseconds;

// The interval between two polls of the devices: short at first, since most operations are short.
constexpr nanoseconds kLookFirst = std::chrono::microseconds(20);
constexpr nanoseconds kLookLast = std::chrono::milliseconds(1);

class DeviceTransport final : public ForwardingTransport {
 public:
  DeviceTransport(std::unique_ptr<Transport> host, DeviceGroupMaker make) : ForwardingTransport(std::move(host)), make_(std::move(make)) {}

  bool drive(const std::function<bool()>& done, nanoseconds until, const std::string& doing) override {
    auto look = kLookFirst;
    while (advance()) {
      if (done()) return true;
      const auto now = inside().clock().now();
      if (now >= until) return false;
      const auto again = std::min(now + look, until);
      const Completion tick = inside().timer(again);  // where time is virtual, this event makes time advance
      bool is_done = false;
      const auto done_or_look = [&] { return (is_done = done()) || tick.done(); };
      inside().drive(done_or_look, again, doing);
      if (is_done) return true;
      look = std::min(2 * look, kLookLast);
    }
    return inside().drive(done, until, doing);
  }

  void poll() override {
    inside().poll();
    advance();
  }

  bool spin(const std::function<bool()>& done) override {
    if (!advance()) return inside().spin(done);
    return inside().spin([&] { return advance(), done(); });
  }

  std::shared_ptr<DeviceGroup> device_group(const std::vector<int>& ranks, uint64_t group) override {
    const auto made = make_(inside(), ranks, group);
    if (made) groups_.push_back(made);
    return made;
  }

 private:
  bool advance() {
    bool under_way = false;
    std::erase_if(groups_, [&](const std::weak_ptr<DeviceGroup>& one) {
      const auto group = one.lock();
      if (group && group->advance()) under_way = true;
      return !group;
    });
    return under_way;
  }

  DeviceGroupMaker make_;
  std::vector<std::weak_ptr<DeviceGroup>> groups_;
};

}  // namespace

std::unique_ptr<Transport> make_device_transport(std::unique_ptr<Transport> host, DeviceGroupMaker make) {
  return std::make_unique<DeviceTransport>(std::move(host), std::move(make));
}

}  // namespace cairn::comm
