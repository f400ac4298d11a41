#pragma once
#include <memory>

#include "comm/link_facts.h"
#include "comm/transport.h"

namespace cairn::harness {

// A transport that says something else of its links, so that collectives choose other algorithms. All ranks must say the same.
std::unique_ptr<comm::Transport> with_link_facts(std::unique_ptr<comm::Transport> inside, const comm::LinkFacts& facts);

}  // namespace cairn::harness
