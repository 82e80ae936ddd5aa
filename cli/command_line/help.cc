#include "cli/command_line/help.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace megascale::cli {
namespace {

constexpr int kWidthMax = 100;
constexpr int kIndent = 4;
constexpr int kDetailIndent = 8;
constexpr char kExitStatus[] =
    "0  good\n"
    "1  the job failed or was cancelled; a checkpoint is corrupt; anything else\n"
    "2  usage, or a bad job file\n"
    "3  the driver cannot be reached, or it and this program refuse each other's certificates\n"
    "4  not found";
constexpr char kEnvironment[] =
    "MEGASCALE_ADDRESS  the driver, where --address, --driver or --listen is not given\n"
    "NO_COLOR           set to anything: plain text, also on a terminal";

std::string Spaces(int count) { return std::string(static_cast<size_t>(count), ' '); }

// Wraps the words of `text` into lines of at most `width` columns, each after `indent` spaces.
std::string Wrap(absl::string_view text, int indent, int width) {
  std::string wrapped;
  std::string line;
  const auto flush = [&] {
    if (!line.empty()) absl::StrAppend(&wrapped, Spaces(indent), line, "\n");
    line.clear();
  };
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!line.empty() && indent + DisplayWidth(line) + 1 + DisplayWidth(word) > width) flush();
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  flush();
  return wrapped;
}

// Returns the lines of `text` unchanged, after the indent.
std::string Verbatim(absl::string_view text) {
  return absl::StrCat(Spaces(kIndent), absl::StrReplaceAll(text, {{"\n", "\n" + Spaces(kIndent)}}),
                      "\n");
}

class Page {
 public:
  explicit Page(const Terminal& terminal)
      : terminal_(terminal), width_(std::min(terminal.width, kWidthMax)) {}

  void Section(absl::string_view heading, absl::string_view body) {
    if (body.empty()) return;
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", Colored(terminal_, "1", heading), "\n",
                    body);
  }
  // Returns a name, and its description on the lines below.
  std::string Entry(absl::string_view name, absl::string_view what) const {
    return absl::StrCat(Spaces(kIndent), Colored(terminal_, "1", name), "\n",
                        Wrap(what, kDetailIndent, width_));
  }
  // Returns a name and its description in two columns.
  std::string Row(absl::string_view name, int width, absl::string_view what) const {
    const int column = kIndent + width + 2;
    std::string lines = Wrap(what, column, width_);
    lines.replace(0, static_cast<size_t>(column),
                  absl::StrCat(Spaces(kIndent), Colored(terminal_, "1", name),
                               Spaces(width + 2 - static_cast<int>(name.size()))));
    return lines;
  }
  std::string Paragraphs(absl::string_view text) const {
    std::string body;
    for (const absl::string_view paragraph : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      absl::StrAppend(&body, body.empty() ? "" : "\n", Wrap(paragraph, kIndent, width_));
    }
    return body;
  }
  int width() const { return width_; }
  const std::string& text() const { return text_; }

 private:
  const Terminal terminal_;
  const int width_;
  std::string text_;
};

std::string Entries(const std::vector<const CLI::Option*>& options, const Page& page,
                    bool positional) {
  std::string body;
  for (const CLI::Option* option : options) {
    if (option->get_positional() != positional) continue;
    absl::StrAppend(&body, page.Entry(OptionName(*option), option->get_description()));
  }
  return body;
}

// Returns a line for each command, below the name of its group. Commands inherit the group of their
// parent, which is not shown again.
std::string Commands(const CLI::App& app, const Page& page) {
  size_t width = 0;
  for (const CLI::App* command : ShownCommands(app)) {
    width = std::max(width, command->get_name().size());
  }
  std::string body;
  std::string group = app.get_group();
  for (const CLI::App* command : ShownCommands(app)) {
    if (command->get_group() != group) {
      group = command->get_group();
      absl::StrAppend(&body, body.empty() ? "" : "\n", Spaces(kIndent / 2), group, "\n");
    }
    absl::StrAppend(&body, page.Row(command->get_name(), static_cast<int>(width),
                                    FirstLine(command->get_description())));
  }
  return body;
}

std::vector<const CLI::Option*> OptionsIn(const CLI::App& app, bool is_connection) {
  std::vector<const CLI::Option*> options = app.get_options();
  std::erase_if(options, [&](const CLI::Option* option) {
    return (option->get_group() == kConnection) != is_connection;
  });
  return options;
}

}  // namespace

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

std::vector<const CLI::Option*> OwnOptions(const CLI::App& app) {
  return OptionsIn(app, /*is_connection=*/false);
}

std::vector<const CLI::Option*> ConnectionOptions(const CLI::App& app) {
  std::vector<const CLI::Option*> options = OptionsIn(app, /*is_connection=*/true);
  std::sort(options.begin(), options.end(), [](const CLI::Option* a, const CLI::Option* b) {
    return a->get_name() < b->get_name();
  });
  return options;
}

std::vector<const CLI::Option*> ExplainedOptions(const CLI::App& program) {
  for (const CLI::App* command : ShownCommands(program)) {
    std::vector<const CLI::Option*> options = ConnectionOptions(*command);
    if (!options.empty()) return options;
  }
  return {};
}

std::string ConnectionText(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : ConnectionOptions(app)) {
    names.push_back(option->get_name(false, true));
  }
  if (names.empty()) return "";
  const CLI::App* program = &app;
  while (program->get_parent() != nullptr) program = program->get_parent();
  return absl::StrCat("which driver, and how to reach it; see `", FullName(*program),
                      " --help`: ", absl::StrJoin(names, ", "));
}

absl::string_view ExitStatusText() { return kExitStatus; }
absl::string_view EnvironmentText() { return kEnvironment; }

std::vector<const CLI::App*> ShownCommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::string Synopsis(const CLI::App& app) {
  std::string text = FullName(app);
  if (!ShownCommands(app).empty()) return absl::StrCat(text, " COMMAND [OPTION]…");
  absl::StrAppend(&text, " [OPTION]…");
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name(true);
    absl::StrAppend(&text, " ", option->get_required() ? name : absl::StrCat("[", name, "]"));
  }
  return text;
}

std::string OptionName(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true);
  const std::string names = absl::StrReplaceAll(option.get_name(false, true), {{",", ", "}});
  const std::string& value = option.get_option_text();
  return value.empty() ? names : absl::StrCat(names, " ", value);
}

std::string FullName(const CLI::App& app) {
  const std::string name = app.get_display_name();
  return app.get_parent() == nullptr ? name : absl::StrCat(FullName(*app.get_parent()), " ", name);
}

std::string FormatHelp(const CLI::App& app, const Terminal& terminal) {
  const std::string description = app.get_description();
  const size_t first_line = description.find('\n');
  Page page(terminal);
  page.Section("NAME", Wrap(absl::StrCat(FullName(app), " - ", description.substr(0, first_line)),
                            kIndent, page.width()));
  page.Section("SYNOPSIS", Wrap(Synopsis(app), kIndent, page.width()));
  if (first_line != std::string::npos) {
    page.Section("DESCRIPTION", page.Paragraphs(description.substr(first_line)));
  }
  page.Section("COMMANDS", Commands(app, page));
  page.Section("ARGUMENTS", Entries(OwnOptions(app), page, /*positional=*/true));
  page.Section("OPTIONS", Entries(OwnOptions(app), page, /*positional=*/false));
  page.Section(kConnection, app.get_parent() == nullptr
                                ? Entries(ExplainedOptions(app), page, /*positional=*/false)
                                : Wrap(ConnectionText(app), kIndent, page.width()));
  if (!app.get_footer().empty()) page.Section("EXAMPLES", Verbatim(app.get_footer()));
  page.Section("EXIT STATUS", Verbatim(kExitStatus));
  page.Section("ENVIRONMENT", Verbatim(kEnvironment));
  return page.text();
}

}  // namespace megascale::cli
