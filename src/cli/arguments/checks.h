// Checks of numbers on the command line, with messages that a person can read. The parser's own print the largest number there is.
#pragma once

namespace CLI {
class Validator;
}

namespace cairn::cli {

CLI::Validator not_negative();
CLI::Validator positive();

}  // namespace cairn::cli
