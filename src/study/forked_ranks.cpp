#include "study/forked_ranks.h"

#include <fstream>
#include <iterator>
#include <limits>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "comm/net/transport.h"
#include "comm/world.h"

namespace cairn::study {
namespace {

std::string text_in(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void close_files(const comm::NetSetup& setup) {
  for (const int fd : setup.fds())
    if (fd >= 0) ::close(fd);
}

// What the forked process does; its exit code.
int be_rank(comm::NetSetup setup, const std::optional<comm::LinkModel>& links, const std::string& file,
            const std::function<std::vector<double>(comm::World&)>& body) {
  try {
    at::set_num_threads(1);
    comm::World world(comm::make_net_transport(std::move(setup), {.links = links}));
    const std::vector<double> found = body(world);
    world.everyone().barrier().wait_host();  // no rank leaves while others still read its messages
    std::ofstream out(file);
    out.precision(std::numeric_limits<double>::max_digits10);
    for (const double one : found) out << one << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::ofstream(file + ".error") << error.what();
    return 1;
  }
}

}  // namespace

std::vector<std::vector<double>> on_forked_ranks(int ranks, const std::optional<comm::LinkModel>& links, const std::string& scratch,
                                                 const std::function<std::vector<double>(comm::World&)>& body) {
  const std::vector<comm::NetSetup> setups = comm::make_net_setups(ranks);
  const auto file_of = [&](int rank) { return fmt::format("{}/rank-{}", scratch, rank); };
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    ::unlink(file_of(rank).c_str());
    const pid_t child = ::fork();
    CAIRN_CHECK(child >= 0, "fork failed");
    if (child == 0) {
      for (int other = 0; other < ranks; ++other)
        if (other != rank) close_files(setups[static_cast<size_t>(other)]);
      ::_exit(be_rank(setups[static_cast<size_t>(rank)], links, file_of(rank), body));
    }
    children.push_back(child);
  }
  for (const comm::NetSetup& setup : setups) close_files(setup);
  std::string error;
  std::vector<std::vector<double>> found;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    ::waitpid(children[static_cast<size_t>(rank)], &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      const std::string said = text_in(file_of(rank) + ".error");
      if (error.empty()) error = fmt::format("rank {}: {}", rank, said.empty() ? "ended by a signal" : said);
      continue;
    }
    std::ifstream in(file_of(rank));
    found.push_back({std::istream_iterator<double>(in), {}});
  }
  if (!error.empty()) base::fail_input("the ranks failed: {}", error);
  return found;
}

}  // namespace cairn::study
