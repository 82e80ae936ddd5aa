#include "cli/command_line.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/nearest_name.h"

namespace megascale::cli {
namespace {

// The innermost subcommand that the words named.
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

// What is wrong with a word that nothing took; `app` is where it was met.
std::string DescribeUnknown(const CLI::App& app, const std::string& word) {
  const bool option = absl::StartsWith(word, "-");
  const std::string name = option ? word.substr(0, word.find('=')) : word;
  const std::vector<std::string> commands = CommandNames(app);
  if (!option && commands.empty()) return absl::StrCat("unexpected argument '", word, "'");
  const std::string nearest = NearestName(name, option ? OptionNames(app) : commands);
  const std::string what = absl::StrCat("unknown ", option ? "option" : "command", " '", name, "'");
  return nearest.empty() ? what : absl::StrCat(what, "; did you mean '", nearest, "'?");
}

std::string FullName(const CLI::App& app) {
  const std::string name = app.get_display_name();
  return app.get_parent() == nullptr ? name : absl::StrCat(FullName(*app.get_parent()), " ", name);
}

int PrintUsageError(const CLI::App& app, const std::string& what) {
  std::fprintf(stderr, "megascale: %s\n  see: %s --help\n", what.c_str(), FullName(app).c_str());
  return kExitUsage;
}

}  // namespace

Command* Command::Add(const std::string& name, const std::string& description) {
  commands_.push_back(std::make_unique<Command>(app_->add_subcommand(name, description)));
  return commands_.back().get();
}

void Command::Hide() { app_->group(""); }

void Command::Flag(const std::string& name, bool* value, const std::string& help) {
  app_->add_flag(name, *value, help);
}

void Command::Text(const std::string& name, std::string* value, const std::string& help) {
  const bool shown = !value->empty() && *value != "\n";
  app_->add_option(name, *value, help)
      ->option_text(shown ? absl::StrCat("TEXT [", *value, "]") : "TEXT");
}

void Command::Integer(const std::string& name, int64_t* value, const std::string& help) {
  app_->add_option(name, *value, help)->option_text(absl::StrCat("N [", *value, "]"));
}

void Command::Number(const std::string& name, double* value, const std::string& help) {
  app_->add_option(name, *value, help)->option_text(absl::StrCat("X [", *value, "]"));
}

void Command::Duration(const std::string& name, absl::Duration* value, const std::string& help) {
  const auto parse = [value, name](const std::string& text) {
    if (!absl::ParseDuration(text, value) || *value < absl::ZeroDuration()) {
      throw CLI::ValidationError(
          name, absl::StrCat("expected a duration such as 30s, found '", text, "'"));
    }
  };
  app_->add_option_function<std::string>(name, parse, help)
      ->option_text(absl::StrCat("TIME [", absl::FormatDuration(*value), "]"));
}

void Command::Repeated(const std::string& name, std::vector<std::string>* values,
                       const std::string& help) {
  app_->add_option(name, *values, help)->allow_extra_args(false)->option_text("TEXT …");
}

void Command::Words(const std::string& name, std::vector<std::string>* values,
                    const std::string& help) {
  app_->add_option(name, *values, help)->option_text("TEXT …");
}

void Command::Positional(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, help)->required()->option_text(" ");
}

void Command::OptionalPositional(const std::string& name, std::string* value,
                                 const std::string& help) {
  app_->add_option(name, *value, help)->option_text(" ");
}

void Command::Examples(const std::string& text) {
  app_->footer(absl::StrCat("\nExamples:\n  ", absl::StrReplaceAll(text, {{"\n", "\n  "}})));
}

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
  app_->get_formatter()->column_width(34);
  app_->set_help_flag("--help", "shows this");
}

CommandLine::~CommandLine() = default;

Command* CommandLine::Add(const std::string& name, const std::string& description) {
  return root_->Add(name, description);
}

int CommandLine::Run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app_->exit(help);
  } catch (const CLI::ParseError& error) {
    const CLI::App& at = *Innermost(app_.get());
    const std::vector<std::string> unknown = app_->remaining(/*recurse=*/true);
    return PrintUsageError(at,
                           unknown.empty() ? error.what() : DescribeUnknown(at, unknown.front()));
  }
  const Command* chosen = root_->Chosen();
  if (chosen != nullptr) return chosen->action_();
  const CLI::App& at = *Innermost(app_.get());
  return PrintUsageError(
      at, absl::StrCat("expected a command: one of ", absl::StrJoin(CommandNames(at), ", ")));
}

}  // namespace megascale::cli
