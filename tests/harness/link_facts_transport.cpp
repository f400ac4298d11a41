#include "harness/link_facts_transport.h"

#include <utility>

#include "comm/forwarding_transport.h"

namespace cairn::harness {
namespace {

class LinkFactsTransport final : public comm::ForwardingTransport {
 public:
  LinkFactsTransport(std::unique_ptr<comm::Transport> inside, const comm::LinkFacts& facts)
      : ForwardingTransport(std::move(inside)), facts_(facts) {}

  comm::LinkFacts link_facts(const std::vector<int>&) const override { return facts_; }

 private:
  comm::LinkFacts facts_;
};

}  // namespace

std::unique_ptr<comm::Transport> with_link_facts(std::unique_ptr<comm::Transport> inside, const comm::LinkFacts& facts) {
  return std::make_unique<LinkFactsTransport>(std::move(inside), facts);
}

}  // namespace cairn::harness
