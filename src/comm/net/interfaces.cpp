#include "comm/net/interfaces.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <set>

#include <asio/ip/address.hpp>

#include "base/check.h"
#include "comm/net/listen.h"

namespace cairn::comm {
namespace {

constexpr size_t kInterfacesAtMost = 16;

std::vector<std::string> addresses_of_machine() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) base::fail_input("--interfaces auto: {}. Name the addresses.", std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<std::string> found;
  std::set<std::string> interfaces;
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    const bool up = (one->ifa_flags & IFF_UP) && (one->ifa_flags & IFF_RUNNING) && !(one->ifa_flags & IFF_LOOPBACK);
    if (!up || !one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !interfaces.insert(one->ifa_name).second) continue;
    sockaddr_in address;
    std::memcpy(&address, one->ifa_addr, sizeof address);
    found.push_back(asio::ip::address_v4(ntohl(address.sin_addr.s_addr)).to_string());
  }
  return found;
}

}  // namespace

std::vector<std::string> interface_addresses(std::string_view text) {
  if (text == "auto") return addresses_of_machine();
  std::vector<std::string> found;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string word(text.substr(at, end - at));
    at = end + 1;
    asio::error_code error;
    const auto address = asio::ip::make_address(word, error);
    if (error || address.is_unspecified())
      base::fail_input("--interfaces {}: \"{}\" is no address. Write addresses of this machine, as 10.0.0.1,10.1.0.1, or auto.", text,
                       word);
    if (std::find(found.begin(), found.end(), address.to_string()) != found.end())
      base::fail_input("--interfaces {}: {} is there twice. Name each interface once.", text, word);
    if (!is_own_address(address.to_string()))
      base::fail_input("--interfaces {}: {} is not an address of this machine. `ip address` shows which are.", text, word);
    found.push_back(address.to_string());
  }
  if (found.size() > kInterfacesAtMost)
    base::fail_input("--interfaces: {} of them, at most {} can be used. Name fewer.", found.size(), kInterfacesAtMost);
  return found;
}

}  // namespace cairn::comm
