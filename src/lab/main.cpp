#include <cstdio>
#include <cstdlib>

#include "lab/commands.h"

int main(int argc, char** argv) {
  const int code = cairn::lab::run(argc, argv);
  std::fflush(nullptr);
  std::quick_exit(code);  // as src/cli/main.cpp
}
