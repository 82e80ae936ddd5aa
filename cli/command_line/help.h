// The text of --help: a manual page of one command, or of the program. Headings are bold on a
// terminal with colour, otherwise plain text.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/view/terminal.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace megascale::cli {

// The group of the options that name the driver, and the heading of their section.
inline constexpr char kConnection[] = "CONNECTION";

// Returns the sections NAME, SYNOPSIS, DESCRIPTION, COMMANDS or ARGUMENTS and OPTIONS, CONNECTION,
// EXAMPLES, EXIT STATUS, ENVIRONMENT. The first line of the command's description goes to NAME; an
// option's option_text follows the option's name. Lines are as wide as the terminal, at most 100
// columns.
std::string FormatHelp(const CLI::App& app, const Terminal& terminal);

// Returns the command with its parents, "megascale certs init".
std::string FullName(const CLI::App& app);

// Parts of a page.
std::string FirstLine(const std::string& text);
std::vector<const CLI::App*> ShownCommands(const CLI::App& app);
std::string Synopsis(const CLI::App& app);          // "megascale cancel [OPTION]… JOB"
std::string OptionName(const CLI::Option& option);  // "--grace TIME"
// Returns the options that the page lists, or those that stand under CONNECTION, by name.
std::vector<const CLI::Option*> OwnOptions(const CLI::App& app);
std::vector<const CLI::Option*> ConnectionOptions(const CLI::App& app);
// Returns the options under CONNECTION of the program's first command that has some. The program's
// page explains them for all commands.
std::vector<const CLI::Option*> ExplainedOptions(const CLI::App& program);
// Returns where the options under CONNECTION are explained: "see `megascale --help`: --address …".
// "": the command has none.
std::string ConnectionText(const CLI::App& app);
absl::string_view ExitStatusText();
absl::string_view EnvironmentText();

// Returns a script to source, or to install as completions/megascale of bash-completion.
std::string BashCompletion(const CLI::App& program);

// Returns a script to source after compinit, or to install as _megascale in a folder of $fpath.
std::string ZshCompletion(const CLI::App& program);

// Returns the page megascale(1): the --help texts of the program and of every command. Characters
// beyond ASCII are written by their roff names.
std::string ManualPage(const CLI::App& program, const std::string& version);

}  // namespace megascale::cli
