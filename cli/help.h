// What --help prints: a manual page of one command, or of the program. Bold headings on a terminal
// with colour, else plain text.
#pragma once

#include <string>

#include "cli/terminal.h"

namespace CLI {
class App;
}

namespace megascale::cli {

// NAME, SYNOPSIS, DESCRIPTION, COMMANDS or ARGUMENTS and OPTIONS, EXAMPLES, EXIT STATUS,
// ENVIRONMENT. Of the command's description the first line is its name's; of its options
// option_text is what follows the name. Lines are as wide as the terminal, at most 100 columns.
std::string FormatHelp(const CLI::App& app, const Terminal& terminal);

// "megascale certs init".
std::string FullName(const CLI::App& app);

}  // namespace megascale::cli
