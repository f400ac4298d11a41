#include "cli/arguments/checks.h"

#include <string>

#include <CLI/CLI.hpp>

namespace cairn::cli {

CLI::Validator not_negative() {
  return {[](const std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= 0 ? std::string() : text + " must be a number of at least 0";
          },
          "NONNEGATIVE"};
}

CLI::Validator positive() {
  return {[](const std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value > 0 ? std::string() : text + " must be a number above 0";
          },
          "POSITIVE"};
}

}  // namespace cairn::cli
