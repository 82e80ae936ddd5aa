#include "cli/command_line/help.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace megascale::cli {
namespace {

// Collects the program and all its commands that --help shows, each before its subcommands.
void Collect(const CLI::App& app, std::vector<const CLI::App*>* all) {
  all->push_back(&app);
  for (const CLI::App* command : ShownCommands(app)) Collect(*command, all);
}

std::vector<const CLI::App*> AllOf(const CLI::App& program) {
  std::vector<const CLI::App*> all;
  Collect(program, &all);
  return all;
}

struct Named {
  std::string name;
  std::string what;
};

// After `help` come the names of commands, too.
std::vector<Named> CommandsIn(const CLI::App& app) {
  const bool is_help = app.get_name() == "help" && app.get_parent() != nullptr;
  std::vector<Named> commands;
  for (const CLI::App* command : ShownCommands(is_help ? *app.get_parent() : app)) {
    commands.push_back({command->get_name(), FirstLine(command->get_description())});
  }
  return commands;
}

std::vector<Named> OptionsOf(const CLI::App& app) {
  std::vector<Named> options;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_snames()) {
      options.push_back({absl::StrCat("-", name), option->get_description()});
    }
    for (const std::string& name : option->get_lnames()) {
      options.push_back({absl::StrCat("--", name), option->get_description()});
    }
  }
  return options;
}

std::string Names(const std::vector<Named>& all) {
  return absl::StrJoin(all, " ",
                       [](std::string* out, const Named& one) { absl::StrAppend(out, one.name); });
}

std::string ShellQuoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Returns "name:what" for each word, as zsh describes words.
std::string Described(const std::vector<Named>& all) {
  return absl::StrJoin(all, " ", [](std::string* out, const Named& one) {
    absl::StrAppend(out, ShellQuoted(absl::StrCat(one.name, ":", one.what)));
  });
}

constexpr char kBash[] = R"(# Completion of megascale for bash, made by `megascale completion bash`.
_megascale() {
  local -A commands=(
%s  )
  local -A options=(
%s  )
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command=megascale word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ -n ${options["$command $word"]+known} ]] && command+=" $word"
  done
  COMPREPLY=()  # empty: names of files
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${options[$command]}" -- "$current")
  elif [[ $previous == -o || $previous == --output ]] && [[ $command != "megascale trace" ]]; then
    mapfile -t COMPREPLY < <(compgen -W "text json" -- "$current")
  elif [[ -n ${commands[$command]} ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${commands[$command]}" -- "$current")
  fi
}
complete -o default -F _megascale megascale
)";

constexpr char kZsh[] = R"(#compdef megascale
# Completion of megascale for zsh, made by `megascale completion zsh`.
_megascale() {
  local name=megascale word
  local -a known subcommands flags
  known=(%s)
  for word in "${(@)words[2,CURRENT-1]}"; do
    (( ${known[(Ie)$name $word]} )) && name+=" $word"
  done
  case $name in
%s  esac
  if [[ ${words[CURRENT]} == -* ]]; then
    _describe -o option flags
  elif (( $#subcommands )); then
    _describe command subcommands
  elif [[ ${words[CURRENT-1]} == (-o|--output) && $name != 'megascale trace' ]]; then
    compadd text json
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _megascale ]]; then
  _megascale "$@"
else
  compdef _megascale megascale
fi
)";

// Escapes text for roff, so that no character is a command or beyond ASCII.
std::string Roff(absl::string_view text) {
  std::string roff;
  for (size_t i = 0; i < text.size();) {
    const unsigned char first = static_cast<unsigned char>(text[i]);
    if (first < 0x80) {
      const bool begins_line = i == 0 || text[i - 1] == '\n';
      if (first == '\\') {
        roff += "\\e";
      } else if (first == '-') {
        roff += "\\-";
      } else if ((first == '.' || first == '\'') && begins_line) {
        absl::StrAppend(&roff, "\\&", text.substr(i, 1));
      } else {
        roff += static_cast<char>(first);
      }
      ++i;
      continue;
    }
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    uint32_t point = first & (0xFFu >> (length + 1));
    for (size_t byte = 1; byte < length && i + byte < text.size(); ++byte) {
      point = point << 6 | (static_cast<unsigned char>(text[i + byte]) & 0x3Fu);
    }
    absl::StrAppendFormat(&roff, "\\[u%04X]", point);
    i += length;
  }
  return roff;
}

// Returns roff that keeps the line breaks of `text`.
std::string AsItIs(absl::string_view text) { return absl::StrCat(".nf\n", Roff(text), "\n.fi\n"); }

std::string RoffParagraphs(absl::string_view text) {
  std::string roff;
  for (const absl::string_view paragraph : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&roff, ".PP\n", Roff(paragraph), "\n");
  }
  return roff;
}

std::string RoffOptions(const std::vector<const CLI::Option*>& options) {
  std::string roff;
  for (const CLI::Option* option : options) {
    absl::StrAppend(&roff, ".TP\n.B ", Roff(OptionName(*option)), "\n",
                    Roff(option->get_description()), "\n");
  }
  return roff;
}

std::string RoffCommand(const CLI::App& command) {
  std::string roff =
      absl::StrCat(".SS ", Roff(Synopsis(command)), "\n", RoffParagraphs(command.get_description()),
                   RoffOptions(OwnOptions(command)));
  if (const std::string text = ConnectionText(command); !text.empty()) {
    absl::StrAppend(&roff, ".PP\n", Roff(text), "\n");
  }
  if (!command.get_footer().empty()) {
    absl::StrAppend(&roff, ".PP\nExamples:\n.PP\n", AsItIs(command.get_footer()));
  }
  return roff;
}

}  // namespace

std::string BashCompletion(const CLI::App& program) {
  std::string commands;
  std::string options;
  for (const CLI::App* app : AllOf(program)) {
    const std::string key = absl::StrCat("    [", ShellQuoted(FullName(*app)), "]=");
    const std::string below = Names(CommandsIn(*app));
    if (!below.empty()) absl::StrAppend(&commands, key, ShellQuoted(below), "\n");
    absl::StrAppend(&options, key, ShellQuoted(Names(OptionsOf(*app))), "\n");
  }
  return absl::StrFormat(kBash, commands, options);
}

std::string ZshCompletion(const CLI::App& program) {
  std::vector<std::string> known;
  std::string cases;
  for (const CLI::App* app : AllOf(program)) {
    const std::string name = ShellQuoted(FullName(*app));
    known.push_back(name);
    absl::StrAppend(&cases, "    ", name, ")\n      subcommands=(", Described(CommandsIn(*app)),
                    ")\n      flags=(", Described(OptionsOf(*app)), ")\n      ;;\n");
  }
  return absl::StrFormat(kZsh, absl::StrJoin(known, " "), cases);
}

std::string ManualPage(const CLI::App& program, const std::string& version) {
  const std::string description = program.get_description();
  std::string roff = absl::StrCat(
      ".\\\" Made by `megascale completion man`.\n.TH MEGASCALE 1 \"\" \"", Roff(version), "\"\n",
      ".SH NAME\n", Roff(FullName(program)), " \\- ", Roff(FirstLine(description)), "\n",
      ".SH SYNOPSIS\n", Roff(Synopsis(program)), "\n.SH DESCRIPTION\n", RoffParagraphs(description),
      ".SH OPTIONS\n", RoffOptions(OwnOptions(program)), ".SH CONNECTION\n",
      RoffOptions(ExplainedOptions(program)), ".SH COMMANDS\n");
  for (const CLI::App* app : AllOf(program)) {
    if (app != &program) absl::StrAppend(&roff, RoffCommand(*app));
  }
  absl::StrAppend(&roff, ".SH EXIT STATUS\n", AsItIs(ExitStatusText()), ".SH ENVIRONMENT\n",
                  AsItIs(EnvironmentText()));
  return roff;
}

}  // namespace megascale::cli
