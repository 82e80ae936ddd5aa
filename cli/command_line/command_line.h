// The program's grammar: subcommands with options, help, and errors that name the most similar
// valid name. A thin layer over a parsing library, so that the library's heavy header is compiled
// only once.
//
//   CommandLine line("megascale", "trains language models …");
//   Command* wait = line.Add("wait", "waits until a job has ended");
//   auto options = std::make_shared<WaitOptions>();      // filled by the parser
//   wait->Positional("JOB", &options->job_id, "the job");
//   wait->Examples("megascale wait fortunes-1a2b3c");
//   wait->Runs([options] { return Wait(*options); });
//   return line.Run(argc, argv);
//
// Options have long names, "--name". Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/view/terminal.h"

namespace CLI {
class App;
}

namespace megascale::cli {

// The program's exit codes.
enum ExitCode : int {
  kExitGood = 0,
  kExitFailed = 1,  // the job failed or was cancelled, a checkpoint is corrupt, any other error
  kExitUsage = 2,   // bad usage, or a bad job file
  kExitUnreachable = 3,  // the driver cannot be reached
  kExitNotFound = 4,
};

// One subcommand. Variables given to it must live until CommandLine::Run returns; their values
// before Run are the defaults.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command* Add(const std::string& name, const std::string& description);
  // Returns the command of that name in this one; null: there is none.
  const Command* Find(const std::string& name) const;
  // Hides the command from --help; it still works.
  void Hide();

  void Flag(const std::string& name, bool* value, const std::string& help);
  void Text(const std::string& name, std::string* value, const std::string& help);
  // As Text, for a name. An empty name is a mistake, because a script's variable was probably not
  // set.
  void Name(const std::string& name, std::string* value, const std::string& help);
  // As Text, for an address. An empty value is a mistake; it does not stand for the default.
  void Address(const std::string& name, std::string* value, const std::string& help);
  // As Address, for a path. A scheme such as "s3://" is a mistake, too.
  void Path(const std::string& name, std::string* value, const std::string& help);
  void Integer(const std::string& name, int64_t* value, const std::string& help);
  // As Integer, without a default. `help` says what happens if it is unset.
  void OptionalInteger(const std::string& name, std::optional<int64_t>* value,
                       const std::string& help);
  void Number(const std::string& name, double* value, const std::string& help);
  // A duration such as "30s" or "1m30s".
  void Duration(const std::string& name, absl::Duration* value, const std::string& help);
  // An option that may be repeated and takes one value each time.
  void Repeated(const std::string& name, std::vector<std::string>* values, const std::string& help);
  // An option that takes all words after it, each a path.
  void Words(const std::string& name, std::vector<std::string>* values, const std::string& help);
  // A required positional argument; not empty.
  void Positional(const std::string& name, std::string* value, const std::string& help);
  // As Positional, for a path.
  void PathPositional(const std::string& name, std::string* value, const std::string& help);
  // A positional argument that may be left out, but may not be empty.
  void OptionalPositional(const std::string& name, std::string* value, const std::string& help);

  // Positional arguments, one or more, each a path.
  void Positionals(const std::string& name, std::vector<std::string>* values,
                   const std::string& help);

  // Takes the words after `--`, which are for another program and may begin with '-'.
  void Rest(const std::string& name, std::vector<std::string>* values, const std::string& help);

  // Moves options that were added to the help's section CONNECTION, which only names them: the
  // program's own page explains them, once.
  void MoveToConnection(const std::vector<std::string>& names);
  // Adds paragraphs to the description in --help, one a line.
  void Details(const std::string& text);
  // Sets the example commands of --help, one a line, or on several lines that end with "\\"; a line
  // "# …" explains the next command.
  void Examples(const std::string& text);
  void Runs(std::function<int()> action);

  std::string name() const;  // "megascale certs init"
  std::string Help(const Terminal& terminal) const;
  const std::string& examples() const { return examples_; }
  bool has_commands() const { return !commands_.empty(); }
  bool is_hidden() const;

 private:
  friend class CommandLine;
  // Returns the command that the parsed words name; null: they name no command.
  const Command* Chosen() const;
  void Collect(std::vector<const Command*>* all) const;
  // Refuses "--data [a,b]", because the library would split it at the comma.
  absl::Status CheckWords(const std::vector<std::string>& words) const;

  CLI::App* app_;
  std::vector<std::unique_ptr<Command>> commands_;
  std::function<int()> action_;
  std::string examples_;
  std::vector<std::string>* rest_ = nullptr;  // takes the words after `--`; null: nothing does
  std::vector<std::string> words_options_;    // options that take all words after them
};

class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();

  Command* Add(const std::string& name, const std::string& description);
  // Begins a group of commands in the program's help; commands that are added next belong to it.
  void Group(const std::string& title) { group_ = title; }
  // Adds `help [COMMAND]…`, which prints the same pages as --help.
  void AddHelp();
  // Makes --version print this text.
  void SetVersion(const std::string& text);

  // Returns the program and every command in it, subcommands included.
  std::vector<const Command*> All() const;

  // Returns the completion script for "bash" or "zsh", or the manual page for "man"; "" for any
  // other word.
  std::string Completion(absl::string_view shell, const std::string& version) const;

  // Fills in the variables from the words after the program's name, without running the command.
  // Errors: InvalidArgument - a mistake, or --help; the message is the text that Run would print.
  absl::Status Parse(const std::vector<std::string>& words);

  // Parses, runs the chosen command's action and returns its exit code. Returns kExitUsage, with
  // one line on standard error, for a mistake, and kExitGood after --help. If output could not be
  // written, that is a failure: see FinishOutput.
  int Run(int argc, char** argv);

 private:
  // As Parse, but lets the library throw its exception for --help.
  absl::Status ParseOrThrow(const std::vector<std::string>& words);
  int Dispatch(int argc, char** argv);
  int ShowHelp(const std::vector<std::string>& names) const;

  std::string group_;
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<Command> root_;
};

}  // namespace megascale::cli
