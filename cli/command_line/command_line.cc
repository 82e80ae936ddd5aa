#include "cli/command_line/command_line.h"

#include <unistd.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "cli/command_line/help.h"
#include "cli/command_line/report.h"
#include "runtime/base/status.h"
#include "runtime/base/text/nearest_name.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/names.h"

namespace megascale::cli {
namespace {

// Returns the innermost subcommand that the words name.
CLI::App* Innermost(CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
  return app;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(absl::StrCat("--", name));
  }
  return names;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); })) {
    names.push_back(command->get_name());
  }
  return names;
}

// Describes an unknown word; `app` is the command that should have taken it.
std::string DescribeUnknown(const CLI::App& app, const std::string& word) {
  const bool option = absl::StartsWith(word, "-");
  const std::string name = option ? word.substr(0, word.find('=')) : word;
  const std::vector<std::string> commands = CommandNames(app);
  if (!option && commands.empty()) return absl::StrCat("unexpected argument '", word, "'");
  const std::string nearest = base::NearestName(name, option ? OptionNames(app) : commands);
  const std::string what = absl::StrCat("unknown ", option ? "option" : "command", " '", name, "'");
  return nearest.empty() ? what : absl::StrCat(what, "; did you mean '", nearest, "'?");
}

CLI::ValidationError Expected(const std::string& name, absl::string_view what,
                              const std::string& found) {
  return CLI::ValidationError(name, absl::StrCat("expected ", what, ", found '", found, "'"));
}

// Refuses "", which a shell makes of a variable that is not set.
CLI::Validator NotEmpty(const std::string& what) {
  const auto check = [what](const std::string& text) {
    return text.empty() ? absl::StrCat("expected ", what, ", found ''") : std::string();
  };
  return CLI::Validator(check, "");
}

// Refuses "" and a scheme, which would be taken for a folder "s3:".
CLI::Validator IsPath(const std::string& name) {
  const auto check = [name](const std::string& text) {
    if (text.empty()) return std::string("expected a path, found ''");
    if (!HasScheme(text)) return std::string();
    const absl::Status refused = job::CheckPath(name, text);  // "NAME: 's3://…' begins with …"
    return std::string(absl::StripPrefix(refused.message(), absl::StrCat(name, ": ")));
  };
  return CLI::Validator(check, "");
}

std::string WithDefault(const std::string& help, const std::string& value) {
  return absl::StrCat(help, " (default: ", value, ")");
}

int PrintUsageError(const CLI::App& app, const std::string& what) {
  constexpr size_t kShownBytesMax = 500;
  std::fprintf(stderr, "megascale: %s\n  see: %s --help\n",
               base::Printable(what, kShownBytesMax).c_str(), FullName(app).c_str());
  return kExitUsage;
}

}  // namespace

Command* Command::Add(const std::string& name, const std::string& description) {
  commands_.push_back(std::make_unique<Command>(app_->add_subcommand(name, description)));
  app_->require_subcommand(0, 1);  // further words are arguments, also if they name commands
  return commands_.back().get();
}

const Command* Command::Find(const std::string& name) const {
  for (const std::unique_ptr<Command>& command : commands_) {
    if (command->app_->get_name() == name) return command.get();
  }
  return nullptr;
}

void Command::Hide() { app_->group(""); }

void Command::MoveToConnection(const std::vector<std::string>& names) {
  for (const std::string& name : names) app_->get_option(name)->group(kConnection);
}

void Command::Flag(const std::string& name, bool* value, const std::string& help) {
  app_->add_flag(name, *value, help);
}

void Command::Text(const std::string& name, std::string* value, const std::string& help) {
  const bool shown = !value->empty() && *value != "\n";
  app_->add_option(name, *value, shown ? WithDefault(help, *value) : help)->option_text("TEXT");
}

void Command::Name(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, help)->check(NotEmpty("a name"))->option_text("NAME");
}

void Command::Address(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, help)->check(NotEmpty("an address"))->option_text("ADDRESS");
}

void Command::Path(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, value->empty() ? help : WithDefault(help, *value))
      ->check(IsPath(name))
      ->option_text("PATH");
}

void Command::Integer(const std::string& name, int64_t* value, const std::string& help) {
  const auto parse = [value, name](const std::string& text) {
    if (!absl::SimpleAtoi(text, value)) throw Expected(name, "a whole number", text);
  };
  app_->add_option_function<std::string>(name, parse, WithDefault(help, absl::StrCat(*value)))
      ->option_text("N");
}

void Command::OptionalInteger(const std::string& name, std::optional<int64_t>* value,
                              const std::string& help) {
  const auto parse = [value, name](const std::string& text) {
    if (!absl::SimpleAtoi(text, &value->emplace())) throw Expected(name, "a whole number", text);
  };
  app_->add_option_function<std::string>(name, parse, help)->option_text("N");
}

void Command::Number(const std::string& name, double* value, const std::string& help) {
  const auto parse = [value, name](const std::string& text) {
    if (!absl::SimpleAtod(text, value)) throw Expected(name, "a number", text);
  };
  app_->add_option_function<std::string>(name, parse, WithDefault(help, absl::StrCat(*value)))
      ->option_text("X");
}

void Command::Duration(const std::string& name, absl::Duration* value, const std::string& help) {
  const auto parse = [value, name](const std::string& text) {
    if (!absl::ParseDuration(text, value) || *value < absl::ZeroDuration()) {
      throw Expected(name, "a duration such as 30s", text);
    }
  };
  app_->add_option_function<std::string>(name, parse,
                                         WithDefault(help, absl::FormatDuration(*value)))
      ->option_text("TIME");
}

void Command::Repeated(const std::string& name, std::vector<std::string>* values,
                       const std::string& help) {
  app_->add_option(name, *values, help)->allow_extra_args(false)->option_text("TEXT …");
}

void Command::Words(const std::string& name, std::vector<std::string>* values,
                    const std::string& help) {
  app_->add_option(name, *values, help)->check(IsPath(name))->option_text("PATH …");
  words_options_.push_back(name);
}

absl::Status Command::CheckWords(const std::vector<std::string>& words) const {
  std::string option;
  for (absl::string_view word : words) {
    if (absl::StartsWith(word, "--")) {
      option = std::string(word.substr(0, word.find('=')));
      word.remove_prefix(std::min(word.size(), option.size() + 1));
    }
    const bool is_list = absl::StartsWith(word, "[") && absl::EndsWith(word, "]");
    if (!is_list || !absl::c_linear_search(words_options_, option)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        option, ": expected values with spaces between them, found the list '", word, "'; write ",
        option, " ",
        absl::StrReplaceAll(word.substr(1, word.size() - 2), {{", ", " "}, {",", " "}})));
  }
  for (const std::unique_ptr<Command>& command : commands_) {
    RETURN_IF_ERROR(command->CheckWords(words));
  }
  return absl::OkStatus();
}

void Command::Positional(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, help)->required()->check(NotEmpty("a value"))->option_text(" ");
}

void Command::PathPositional(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, help)->required()->check(IsPath(name))->option_text(" ");
}

void Command::OptionalPositional(const std::string& name, std::string* value,
                                 const std::string& help) {
  app_->add_option(name, *value, help)->check(NotEmpty("a value"))->option_text(" ");
}

void Command::Positionals(const std::string& name, std::vector<std::string>* values,
                          const std::string& help) {
  app_->add_option(name, *values, help)->check(IsPath(name))->option_text(" ");
}

// For the help only: the library gives words after `--` to the outer command once an inner one has
// all that it must have.
void Command::Rest(const std::string& name, std::vector<std::string>* values,
                   const std::string& help) {
  app_->add_option(name, *values, help)->expected(0, -1)->option_text("…");
  rest_ = values;
}

void Command::Examples(const std::string& text) {
  app_->footer(text);
  examples_ = text;
}

void Command::Details(const std::string& text) {
  app_->description(absl::StrCat(app_->get_description(), "\n", text));
}

std::string Command::name() const { return FullName(*app_); }

std::string Command::Help(const Terminal& terminal) const { return FormatHelp(*app_, terminal); }

bool Command::is_hidden() const { return app_->get_group().empty(); }

void Command::Runs(std::function<int()> action) { action_ = std::move(action); }

const Command* Command::Chosen() const {
  for (const std::unique_ptr<Command>& command : commands_) {
    if (command->app_->parsed()) return command->Chosen();
  }
  return action_ ? this : nullptr;
}

CommandLine::CommandLine(const std::string& name, const std::string& description)
    : app_(std::make_unique<CLI::App>(description, name)),
      root_(std::make_unique<Command>(app_.get())) {
  app_->formatter_fn([](const CLI::App* app, const std::string&, CLI::AppFormatMode) {
    return FormatHelp(*app, DetectTerminal(STDOUT_FILENO));
  });
  app_->set_help_flag("-h,--help", "shows this page");
}

CommandLine::~CommandLine() = default;

void CommandLine::SetVersion(const std::string& text) {
  app_->set_version_flag("--version", text, "shows the version");
}

Command* CommandLine::Add(const std::string& name, const std::string& description) {
  Command* command = root_->Add(name, description);
  if (!group_.empty()) command->app_->group(group_);
  return command;
}

void CommandLine::AddHelp() {
  auto names = std::make_shared<std::vector<std::string>>();
  Command* command = Add("help", "shows the page of the program or of a command, as --help does");
  command->app_->add_option("COMMAND", *names, "the command's name")->option_text(" ");
  command->Examples("megascale help submit\nmegascale help certs init");
  command->Runs([this, names] { return ShowHelp(*names); });
}

int CommandLine::ShowHelp(const std::vector<std::string>& names) const {
  const Command* command = root_.get();
  for (const std::string& name : names) {
    const Command* inner = command->Find(name);
    if (inner == nullptr) {
      return PrintUsageError(*command->app_, DescribeUnknown(*command->app_, name));
    }
    command = inner;
  }
  std::printf("%s", command->Help(DetectTerminal(STDOUT_FILENO)).c_str());
  return kExitGood;
}

void Command::Collect(std::vector<const Command*>* all) const {
  all->push_back(this);
  for (const std::unique_ptr<Command>& command : commands_) command->Collect(all);
}

std::vector<const Command*> CommandLine::All() const {
  std::vector<const Command*> all;
  root_->Collect(&all);
  return all;
}

std::string CommandLine::Completion(absl::string_view shell, const std::string& version) const {
  if (shell == "bash") return BashCompletion(*app_);
  if (shell == "zsh") return ZshCompletion(*app_);
  return shell == "man" ? ManualPage(*app_, version) : "";
}

namespace {

// Returns the library's words about a mistake, or better ones about an option that is given twice
// or has no value.
std::string DescribeError(absl::string_view what) {
  const absl::string_view name = what.substr(0, what.find(": "));
  if (absl::StrContains(what, ": At Most ")) return absl::StrCat(name, ": expected once");
  if (!absl::EndsWith(what, " missing")) return std::string(what);
  return absl::StrCat(name, ": has no value; expected ", name, " VALUE");
}

// The library would take the next word for the value of "--from=", which a script writes when its
// variable is empty.
absl::Status CheckHaveValues(const std::vector<std::string>& words) {
  for (const absl::string_view word : words) {
    if (word == "--") return absl::OkStatus();
    if (!absl::StartsWith(word, "--") || word.find('=') != word.size() - 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(word, ": has no value; expected ", word, "VALUE"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CommandLine::ParseOrThrow(const std::vector<std::string>& words) {
  RETURN_IF_ERROR(CheckHaveValues(words));
  const Command* command = root_.get();
  for (const std::string& word : words) {
    const Command* const inner = command->Find(word);
    if (inner == nullptr) break;
    command = inner;
  }
  auto end = words.end();
  if (command->rest_ != nullptr) end = std::find(words.begin(), words.end(), "--");
  if (end != words.end()) command->rest_->assign(end + 1, words.end());
  // As the library wants it.
  std::vector<std::string> reversed(std::make_reverse_iterator(end), words.rend());
  try {
    app_->parse(std::move(reversed));
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& error) {
    const CLI::App& at = *Innermost(app_.get());
    const std::vector<std::string> unknown = app_->remaining(/*recurse=*/true);
    return absl::InvalidArgumentError(unknown.empty() ? DescribeError(error.what())
                                                      : DescribeUnknown(at, unknown.front()));
  }
  RETURN_IF_ERROR(root_->CheckWords(words));
  if (root_->Chosen() != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a command: one of ", absl::StrJoin(CommandNames(*Innermost(app_.get())), ", ")));
}

absl::Status CommandLine::Parse(const std::vector<std::string>& words) {
  try {
    return ParseOrThrow(words);
  } catch (const CLI::Success&) {
    return absl::InvalidArgumentError(
        "--help prints a page and runs no command; leave it out here");
  }
}

int CommandLine::Run(int argc, char** argv) { return FinishOutput(Dispatch(argc, argv)); }

int CommandLine::Dispatch(int argc, char** argv) {
  try {
    const absl::Status parsed = ParseOrThrow({argv + 1, argv + argc});
    if (parsed.ok()) return root_->Chosen()->action_();
    return PrintUsageError(*Innermost(app_.get()), std::string(parsed.message()));
  } catch (const CLI::Success& help) {
    return app_->exit(help);
  }
}

}  // namespace megascale::cli
