// The program's grammar: subcommands with options, help, and mistakes answered with the nearest
// name. A thin layer over a parsing library whose header is heavy, so that it is compiled once.
//
//   CommandLine line("megascale", "trains language models …");
//   Command* wait = line.Add("wait", "waits until a job has ended");
//   auto options = std::make_shared<WaitOptions>();      // filled by the parser
//   wait->Positional("JOB", &options->job_id, "the job");
//   wait->Examples("megascale wait fortunes-1a2b3c");
//   wait->Runs([options] { return Wait(*options); });
//   return line.Run(argc, argv);
//
// Options are long, "--name". Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/terminal.h"

namespace CLI {
class App;
}

namespace megascale::cli {

// What the program exits with.
enum ExitCode : int {
  kExitGood = 0,
  kExitFailed = 1,       // a job that failed or was cancelled, a corrupt checkpoint, anything else
  kExitUsage = 2,        // usage, or a bad job file
  kExitUnreachable = 3,  // no driver
  kExitNotFound = 4,
};

// One subcommand. Variables given to it must live until CommandLine::Run returns; what they hold
// before is the default, which --help shows where `shown_default` is not empty.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command* Add(const std::string& name, const std::string& description);
  // Works as the others, but --help does not list it.
  void Hide();

  void Flag(const std::string& name, bool* value, const std::string& help);
  void Text(const std::string& name, std::string* value, const std::string& help);
  void Integer(const std::string& name, int64_t* value, const std::string& help);
  void Number(const std::string& name, double* value, const std::string& help);
  // "30s", "1m30s".
  void Duration(const std::string& name, absl::Duration* value, const std::string& help);
  // One value each time it is given.
  void Repeated(const std::string& name, std::vector<std::string>* values, const std::string& help);
  // All the words that follow it.
  void Words(const std::string& name, std::vector<std::string>* values, const std::string& help);
  // A word without a name; required.
  void Positional(const std::string& name, std::string* value, const std::string& help);
  // The same, not required.
  void OptionalPositional(const std::string& name, std::string* value, const std::string& help);

  // Paragraphs for --help, one a line, beyond the description.
  void Details(const std::string& text);
  // Commands for --help to show, one a line, or more with "\\" at the end; "# …" explains one.
  void Examples(const std::string& text);
  void Runs(std::function<int()> action);

  std::string name() const;  // "megascale certs init"
  std::string Help(const Terminal& terminal) const;
  const std::string& examples() const { return examples_; }
  bool has_commands() const { return !commands_.empty(); }
  bool is_hidden() const;

 private:
  friend class CommandLine;
  // What to run for the words that were given; null where they name no command.
  const Command* Chosen() const;
  void Collect(std::vector<const Command*>* all) const;

  CLI::App* app_;
  std::vector<std::unique_ptr<Command>> commands_;
  std::function<int()> action_;
  std::string examples_;
};

class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();

  Command* Add(const std::string& name, const std::string& description);

  // The program and every command in it, also those of commands.
  std::vector<const Command*> All() const;

  // Fills the variables in from the words after the program's name, and runs nothing.
  // Errors: InvalidArgument - what Run would print; also for --help.
  absl::Status Parse(const std::vector<std::string>& words);

  // Parses, then runs the chosen command's action and returns its exit code; kExitUsage with one
  // line on standard error for a mistake, kExitGood after --help.
  int Run(int argc, char** argv);

 private:
  // As Parse, but for --help, which the library throws.
  absl::Status ParseOrThrow(std::vector<std::string> words);

  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<Command> root_;
};

}  // namespace megascale::cli
