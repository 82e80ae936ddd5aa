#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/commands/follow.h"
#include "cli/commands/submit.h"
#include "cli/connection/connection.h"
#include "cli/job_file/job_file.h"
#include "cli/view/live_view.h"
#include "cli/view/terminal.h"
#include "runtime/base/clock.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/node_memory.h"
#include "runtime/model/config.h"

namespace megascale::cli {
namespace {

struct SubmitFlags {
  JobFlags job;
  ConnectionFlags connection;
  bool follow = false;
  bool dry_run = false;
  int64_t slots = 0;
  std::string format = "text";
};

// Adds a row. If the rest of the last row is the same, extends that row's name instead: "0-3".
void AddRow(std::vector<std::string> row, std::vector<std::vector<std::string>>* rows) {
  std::vector<std::string>& last = rows->back();
  if (std::equal(row.begin() + 1, row.end(), last.begin() + 1)) {
    last[0] = absl::StrCat(last[0].substr(0, last[0].find('-')), "-", row[0]);
  } else {
    rows->push_back(std::move(row));
  }
}

// Returns the memory of machines with `slots` slots each, as the driver fills them; 0: one machine
// runs all ranks.
absl::StatusOr<std::vector<layout::NodeMemory>> MachinesOf(int world, int64_t slots,
                                                           layout::JobMemory* of_job) {
  const int step = static_cast<int>(slots == 0 ? world : std::min<int64_t>(slots, world));
  std::vector<layout::NodeMemory> machines;
  for (int first = 0; first < world; first += step) {
    std::vector<int> here(static_cast<size_t>(std::min(step, world - first)));
    std::iota(here.begin(), here.end(), first);
    ASSIGN_OR_RETURN(layout::NodeMemory memory, of_job->OfMachine(here));
    machines.push_back(std::move(memory));
  }
  return machines;
}

// Memory that only some jobs need; it has a column only if a rank needs any.
struct RareColumn {
  const char* title;
  int64_t layout::RankMemory::*bytes;
};
constexpr RareColumn kRareColumns[] = {{"DRIVER", &layout::RankMemory::context},
                                       {"GRAPHS", &layout::RankMemory::graphs},
                                       {"NCCL", &layout::RankMemory::device_communicators},
                                       {"COMMUNICATORS", &layout::RankMemory::communicators},
                                       {"PINNED", &layout::RankMemory::pinned}};

std::string RankTable(const std::vector<layout::NodeMemory>& machines) {
  using base::FormatBytes;
  layout::RankMemory all;
  bool connects = false;  // to other machines
  for (const layout::NodeMemory& machine : machines) {
    for (const layout::NodeMemory::Rank& rank : machine.ranks) {
      all += rank.memory;
      connects = connects || !rank.connections.empty();
    }
  }
  std::vector<std::vector<std::string>> rows = {{"RANK", "WEIGHTS", "GRADIENTS", "OPTIMIZER",
                                                 "ACTIVATIONS", "LOGITS", "SCRATCH", "WORKSPACES"}};
  for (const RareColumn& column : kRareColumns) {
    if (all.*column.bytes != 0) rows[0].emplace_back(column.title);
  }
  rows[0].insert(rows[0].end(), {"PROCESS", "SUM"});
  if (connects) rows[0].insert(rows[0].end(), {"CONNECTIONS", "DESCRIPTORS"});
  for (const layout::NodeMemory& machine : machines) {
    for (const layout::NodeMemory::Rank& rank : machine.ranks) {
      const layout::RankMemory& need = rank.memory;
      const std::string slots =
          absl::StrCat(need.num_slots, " x ", FormatBytes(need.activations / need.num_slots));
      std::vector<std::string> row = {absl::StrCat(rank.rank),
                                      FormatBytes(need.weights),
                                      FormatBytes(need.gradients),
                                      FormatBytes(need.optimizer),
                                      slots,
                                      FormatBytes(need.logits),
                                      FormatBytes(need.scratch),
                                      FormatBytes(need.workspaces)};
      for (const RareColumn& column : kRareColumns) {
        if (all.*column.bytes != 0) row.push_back(FormatBytes(need.*column.bytes));
      }
      row.insert(row.end(), {FormatBytes(need.process), FormatBytes(need.sum())});
      if (connects) {
        row.insert(row.end(),
                   {absl::StrCat(rank.num_connections()), absl::StrCat(rank.num_descriptors())});
      }
      AddRow(std::move(row), &rows);
    }
  }
  return FormatTable(rows);
}

std::string MachineTable(const std::vector<layout::NodeMemory>& machines) {
  using base::FormatBytes;
  std::vector<std::vector<std::string>> rows = {{"MACHINE", "RANKS", "RANKS' SUM", "SNAPSHOTS",
                                                 "COLLECTIVES", "BATCH RING", "TELEMETRY", "HOST",
                                                 "SUM"}};
  for (size_t i = 0; i < machines.size(); ++i) {
    const layout::NodeMemory& memory = machines[i];
    int64_t ranks = 0;
    for (const layout::NodeMemory::Rank& rank : memory.ranks) ranks += rank.memory.sum();
    AddRow({absl::StrCat(i), absl::StrCat(memory.ranks.size()), FormatBytes(ranks),
            FormatBytes(memory.snapshots), FormatBytes(memory.collectives),
            FormatBytes(memory.batch_ring), FormatBytes(memory.telemetry), FormatBytes(memory.host),
            FormatBytes(memory.sum())},
           &rows);
  }
  return FormatTable(rows);
}

absl::StatusOr<std::string> MemoryTables(const job::v1::JobSpec& spec, int64_t slots) {
  const int world = job::WorldSize(spec);
  ASSIGN_OR_RETURN(layout::JobMemory of_job, layout::JobMemory::Create(spec));
  ASSIGN_OR_RETURN(const std::vector<layout::NodeMemory> machines,
                   MachinesOf(world, slots, &of_job));
  // Machines like this one would refuse these. Without --slots no machine is known.
  if (slots > 0) {
    for (const layout::NodeMemory& machine : machines) {
      RETURN_IF_ERROR(layout::CheckDescriptors(machine, base::RaiseDescriptorLimit()));
    }
    RETURN_IF_ERROR(layout::CheckRings(machines.front(), base::SmallestMemoryLimit()));
  }
  ASSIGN_OR_RETURN(const std::vector<layout::NodeMemory> together,
                   MachinesOf(world, /*slots=*/0, &of_job));
  std::string text = absl::StrCat("memory of each rank:\n", RankTable(machines),
                                  "memory of each machine:\n", MachineTable(machines));
  const std::optional<base::MemoryLimit> limit = base::LeastMemoryLimit();
  if (limit.has_value()) {
    absl::StrAppend(&text, "here ", base::FormatBytes(limit->available_bytes), " of ",
                    base::FormatBytes(limit->limit_bytes), " are free (", limit->source, ")",
                    layout::CheckMemory(together.front(), limit).ok()
                        ? ": the whole job fits"
                        : ": too little for the whole job");
  }
  return absl::StrCat("# ", absl::StrReplaceAll(text, {{"\n", "\n# "}}), "\n");
}

int DryRun(const SubmitFlags& flags, const control::v1::SubmitJobRequest& request) {
  if (flags.format == "json") {
    PrintJson(request, JsonLayout::kPretty);
    return kExitGood;
  }
  const absl::StatusOr<model::ModelConfig> config = model::MakeModelConfig(request.spec().model());
  if (!config.ok()) return ReportError(config.status());
  std::printf("# %s is valid; nothing was submitted\n", flags.job.file.c_str());
  std::printf(
      "# %s; %s parameters; %d micro-batches a step\n", job::NeededSlots(request.spec()).c_str(),
      WithCommas(model::NumParameters(*config)).c_str(), job::NumMicrobatches(request.spec()));
  const absl::StatusOr<std::string> memory = MemoryTables(request.spec(), flags.slots);
  if (!memory.ok()) return ReportError(memory.status());
  std::printf("%s", memory->c_str());
  std::printf("%s", ToYaml(request.spec()).c_str());
  return kExitGood;
}

int FollowSubmitted(const SubmitFlags& flags, const std::string& job_id, client::JobClient* client,
                    Interrupt* interrupt) {
  FollowOptions options;
  options.style = flags.format == "json" ? FollowStyle::kJson : FollowStyle::kLive;
  options.needs_output = true;
  options.interrupt = interrupt;
  options.connection = flags.connection;
  const absl::StatusOr<FollowResult> result = FollowJob(client, job_id, options);
  if (!result.ok()) return ReportCallError(result.status(), flags.connection);
  if (result->end == FollowResult::End::kJobEnded) return ExitCodeOf(result->job);
  if (result->end == FollowResult::End::kOutputLost) return kExitFailed;  // FinishOutput says why
  PrintDetached(job_id, flags.connection);
  return kExitGood;
}

// Prints only the id to standard output, for scripts.
void PrintSubmitted(const SubmitFlags& flags, const control::v1::Job& job) {
  if (flags.format == "json") {
    PrintJson(job, flags.follow ? JsonLayout::kOneLine : JsonLayout::kPretty);
    return;
  }
  std::printf("%s\n", job.job_id().c_str());
  FlushOutput();
  if (flags.follow) return;
  const auto next = [&](const char* verb, const char* what) {
    const std::string words = absl::StrCat(verb, " ", job.job_id());
    std::fprintf(stderr, "  %s: %s\n", what, NextCommand(words, flags.connection).c_str());
  };
  next("watch", "follow it");
  next("logs -f", "its output");
  next("cancel", "stop it");
}

int RefuseEndedJob(const SubmitFlags& flags, const control::v1::Job& job) {
  const std::string status = NextCommand(absl::StrCat("status ", job.job_id()), flags.connection);
  return ReportError(
      EndedBefore(job),
      absl::StrCat("run it again under another --job-id, or without one; --from CHECKPOINT goes on "
                   "from a checkpoint, which `",
                   status, "` shows"));
}

int Submit(const SubmitFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto request = MakeSubmitRequest(flags.job, JobPlace::kElsewhere);
  if (!request.ok()) return ReportMistakes(request.status());
  if (flags.slots < 0) {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--slots: ", flags.slots, " is out of range; expected 0 or more")));
  }
  if (flags.dry_run && flags.job.take_over) {
    return ReportError(absl::InvalidArgumentError(
        "--take-over: --dry-run takes nothing over; leave one of the two out"));
  }
  if (flags.dry_run) return DryRun(flags, *request);
  const absl::Duration began_at = base::RealClock().Monotonic();
  std::unique_ptr<Interrupt> interrupt;
  if (flags.follow) interrupt = std::make_unique<Interrupt>();
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  const auto stop = [&] { return interrupt != nullptr && interrupt->Count() > 0; };
  const auto job = (*client)->Submit(*request, RetryOf(flags.connection, stop));
  if (!job.ok()) return ReportCallError(job.status(), flags.connection);
  if (IsOlder(*job, base::RealClock().Monotonic() - began_at)) {
    if (IsTerminal(job->state())) return RefuseEndedJob(flags, *job);
    std::fprintf(stderr, "job %s: exists already, %s; nothing was changed\n", job->job_id().c_str(),
                 StateName(job->state()).c_str());
  }
  PrintSubmitted(flags, *job);
  if (!flags.follow) return kExitGood;
  return FollowSubmitted(flags, job->job_id(), client->get(), interrupt.get());
}

}  // namespace

void AddSubmitCommand(CommandLine* line) {
  auto flags = std::make_shared<SubmitFlags>();
  Command* command =
      line->Add("submit", "gives a job to the driver; repeating it with the same --job-id is safe");
  AddJobOptions(command, &flags->job);
  command->Flag("--follow", &flags->follow, "follow it until it ends; Ctrl-C leaves it running");
  command->Flag("--dry-run", &flags->dry_run,
                "check the file, show the memory it needs and all fields; submit nothing");
  command->Integer("--slots", &flags->slots,
                   "with --dry-run: worker processes on each machine; 0: one machine runs all");
  AddRetryOption(command, &flags->connection);
  AddOutputOption(command, &flags->format);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "The file is checked first, here and by the driver; a mistake names the field and submits "
      "nothing. Returns once the job is durable in the driver's log. Repeating a submit with the "
      "same --job-id and the same job changes nothing and answers as the first time; with another "
      "job it is refused, and so is the id of a job that has ended.");
  command->Examples(
      "megascale submit examples/fortunes.yaml --follow\n"
      "megascale submit job.yaml --set train.steps=100 --set optimizer.lr=1e-3\n"
      "megascale submit job.yaml --dry-run\n"
      "megascale submit job.yaml --from out/checkpoints/step-00000400-attempt-1");
  command->Runs([flags] { return Submit(*flags); });
}

}  // namespace megascale::cli
