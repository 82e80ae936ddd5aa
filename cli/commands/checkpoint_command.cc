// checkpoint list | inspect | digest | verify | import | export.
#include <limits.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/job_file/job_file.h"
#include "cli/view/terminal.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/hugging_face/import.h"
#include "runtime/inference/inference.h"
#include "runtime/inference/text_source.h"

namespace megascale::cli {
namespace {

using checkpoint::CheckpointReader;

struct CheckpointFlags {
  std::string directory;
  std::string format = "text";
};

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenCheckpoint(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::string step_directory, FindCheckpoint(directory));
  return CheckpointReader::Open(step_directory);
}

// True if nothing is in the folder but what a job leaves in its folder of checkpoints: folders of
// steps, and hidden files.
bool HoldsOnlyCheckpoints(const std::string& directory) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(directory, error);
  return !error && std::all_of(begin(entries), end(entries), [](const auto& entry) {
    const std::string name = entry.path().filename().string();
    return absl::StartsWith(name, ".") || checkpoint::ParseStepDirectoryName(name).has_value();
  });
}

// Returns why a folder without complete checkpoints is not a job's folder of them; OK: it is one.
absl::Status CheckEmptyFolder(const std::string& directory) {
  const auto holds = [&](absl::string_view name) {
    std::error_code error;
    return std::filesystem::exists(absl::StrCat(directory, "/", name), error);
  };
  const auto refuse = [&](absl::string_view found) {
    return absl::NotFoundError(absl::StrCat(
        directory, ": ", found, "; expected a job's folder of checkpoints, with folders such as ",
        checkpoint::StepDirectoryName(100, 1)));
  };
  if (holds(checkpoint::kManifestFile)) {
    return refuse("is one checkpoint, see it with `megascale checkpoint inspect`");
  }
  if (holds("checkpoints")) return refuse("is a job's folder, its checkpoints are in checkpoints/");
  if (HoldsOnlyCheckpoints(directory)) return absl::OkStatus();
  return refuse("has no checkpoints, but other files");
}

absl::Status List(const CheckpointFlags& flags) {
  ASSIGN_OR_RETURN(const auto checkpoints, checkpoint::ListCheckpoints(flags.directory));
  if (checkpoints.empty()) {
    RETURN_IF_ERROR(CheckEmptyFolder(flags.directory));
    std::fprintf(stderr, "%s: has no complete checkpoint yet\n",
                 base::Printable(flags.directory, PATH_MAX).c_str());
    return absl::OkStatus();
  }
  if (flags.format == "json") {
    for (const auto& summary : checkpoints) PrintJson(summary, JsonLayout::kOneLine);
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {{"STEP", "ATTEMPT", "BYTES", "JOB", "DIRECTORY"}};
  for (const auto& summary : checkpoints) {
    rows.push_back({absl::StrCat(summary.step()), absl::StrCat(summary.attempt()),
                    WithCommas(summary.size_bytes()), summary.job_id(), summary.directory()});
  }
  std::printf("%s", FormatTable(rows).c_str());
  return absl::OkStatus();
}

absl::Status Inspect(const CheckpointFlags& flags) {
  ASSIGN_OR_RETURN(const auto reader, OpenCheckpoint(flags.directory));
  RETURN_IF_ERROR(reader->Verify());
  const checkpoint::v1::Manifest& manifest = reader->manifest();
  if (flags.format == "json") {
    PrintJson(manifest, JsonLayout::kPretty);
    return absl::OkStatus();
  }
  std::printf("job %s, attempt %lld, step %lld, next sample %lld\n", manifest.job_id().c_str(),
              static_cast<long long>(manifest.attempt()), static_cast<long long>(manifest.step()),
              static_cast<long long>(manifest.next_sample()));
  std::printf("written by megascale %s, %s, %s bytes\n", manifest.megascale_version().c_str(),
              base::Counted(manifest.shards_size(), "shard").c_str(),
              WithCommas(reader->size_bytes()).c_str());
  std::printf("\n%s\n", ToYaml(manifest.spec()).c_str());
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "DTYPE", "SHAPE"}};
  for (const checkpoint::LogicalTensor& tensor : reader->tensors()) {
    rows.push_back(
        {tensor.name, tensor.dtype, absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]")});
  }
  std::printf("%s", FormatTable(rows).c_str());
  return absl::OkStatus();
}

absl::Status Digest(const CheckpointFlags& flags) {
  ASSIGN_OR_RETURN(const auto reader, OpenCheckpoint(flags.directory));
  ASSIGN_OR_RETURN(const std::string digest, reader->Digest());
  if (flags.format == "json") {
    JsonObject object;
    object.Add("digest", digest);
    object.Add("step", int64_t{reader->manifest().step()});
    object.Add("next_sample", int64_t{reader->manifest().next_sample()});
    std::printf("%s\n", object.Finish().c_str());
  } else {
    std::printf("%s\n", digest.c_str());
  }
  return absl::OkStatus();
}

absl::Status Verify(const CheckpointFlags& flags) {
  ASSIGN_OR_RETURN(const std::string step_directory, FindCheckpoint(flags.directory));
  ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(step_directory));
  RETURN_IF_ERROR(reader->Verify());
  RETURN_IF_ERROR(checkpoint::CheckPlace(step_directory, reader->manifest()));
  if (flags.format == "json") {
    JsonObject object;
    object.Add("verified_shards", int64_t{reader->manifest().shards_size()});
    object.Add("size_bytes", reader->size_bytes());
    object.Add("job", reader->manifest().job_id());
    std::printf("%s\n", object.Finish().c_str());
  } else {
    std::printf("job %s, step %lld\n", reader->manifest().job_id().c_str(),
                static_cast<long long>(reader->manifest().step()));
    std::printf("%s, %s bytes: all checksums match\n",
                base::Counted(reader->manifest().shards_size(), "shard").c_str(),
                WithCommas(reader->size_bytes()).c_str());
  }
  return absl::OkStatus();
}

struct CheckpointVerb {
  const char* name;
  const char* description;
  const char* directory;
  const char* example;
  absl::Status (*run)(const CheckpointFlags&);
};

struct ConvertFlags {
  std::string from;
  std::string to;
  std::string file_format = "hf";
  std::string dtype;
  std::string output = "text";
};

absl::Status ShowConverted(const ConvertFlags& flags,
                           const absl::StatusOr<hugging_face::Converted>& converted) {
  RETURN_IF_ERROR(converted.status());
  for (const std::string& warning : converted->warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  if (flags.output == "json") {
    JsonObject object;
    object.Add("directory", flags.to);
    object.Add("tensors", converted->num_tensors);
    object.Add("files", converted->num_files);
    object.Add("size_bytes", converted->size_bytes);
    std::printf("%s\n", object.Finish().c_str());
    return absl::OkStatus();
  }
  std::printf("%s: %s tensors in %s %s, %s bytes\n", base::Printable(flags.to, PATH_MAX).c_str(),
              WithCommas(converted->num_tensors).c_str(), WithCommas(converted->num_files).c_str(),
              converted->num_files == 1 ? "file" : "files",
              WithCommas(converted->size_bytes).c_str());
  return absl::OkStatus();
}

absl::Status Import(const ConvertFlags& flags) {
  return ShowConverted(flags, hugging_face::Import(flags.from, flags.to));
}

absl::Status Export(const ConvertFlags& flags) {
  constexpr std::pair<absl::string_view, absl::string_view> kDtypes[] = {
      {"", ""}, {"fp32", "F32"}, {"bf16", "BF16"}, {"fp16", "F16"}};
  const auto* const dtype =
      std::find_if(std::begin(kDtypes), std::end(kDtypes),
                   [&](const auto& known) { return known.first == flags.dtype; });
  if (dtype == std::end(kDtypes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype ", flags.dtype, ": expected fp32, bf16 or fp16"));
  }
  if (flags.file_format != "hf") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", flags.file_format, ": expected hf"));
  }
  ASSIGN_OR_RETURN(const std::string step_directory, FindCheckpoint(flags.from));
  ASSIGN_OR_RETURN(const auto end_token, inference::FindJobEndToken(step_directory));
  return ShowConverted(flags, hugging_face::Export({.checkpoint = step_directory,
                                                    .folder = flags.to,
                                                    .dtype = std::string(dtype->second),
                                                    .end_token = end_token}));
}

void RunConversion(Command* command, const std::shared_ptr<ConvertFlags>& flags,
                   absl::Status (*run)(const ConvertFlags&)) {
  AddOutputOption(command, &flags->output);
  command->Runs([flags, run] {
    if (!CheckOutputFormat(flags->output)) return static_cast<int>(kExitUsage);
    if (flags->to.empty()) {
      ReportError(absl::InvalidArgumentError("--out is missing; expected a new or empty folder"));
      return static_cast<int>(kExitUsage);
    }
    const absl::Status status = run(*flags);
    return status.ok() ? static_cast<int>(kExitGood) : ReportError(status);
  });
}

void AddImport(Command* parent) {
  auto flags = std::make_shared<ConvertFlags>();
  Command* command =
      parent->Add("import", "makes a checkpoint of weights alone from a Hugging Face folder");
  command->PathPositional("FOLDER", &flags->from, "a folder with config.json and safetensors");
  command->Path("--out", &flags->to, "the checkpoint: a new or empty folder");
  command->Examples("megascale checkpoint import models/llama --out weights");
  RunConversion(command, flags, Import);
}

void AddExport(Command* parent, const char* directory) {
  auto flags = std::make_shared<ConvertFlags>();
  Command* command =
      parent->Add("export", "writes a checkpoint's weights as a Hugging Face folder");
  command->PathPositional("DIR", &flags->from, directory);
  command->Path("--out", &flags->to, "a new or empty folder");
  command->Text("--format", &flags->file_format, "hf (default)");
  command->Text("--dtype", &flags->dtype, "fp32, bf16 or fp16 (default: as stored)");
  command->Examples(
      "megascale checkpoint export out/checkpoints --format hf --out models/mine\n"
      "megascale checkpoint export out/checkpoints --dtype bf16 --out models/mine");
  RunConversion(command, flags, Export);
}

void AddVerb(Command* parent, const CheckpointVerb& verb) {
  auto flags = std::make_shared<CheckpointFlags>();
  Command* command = parent->Add(verb.name, verb.description);
  command->PathPositional("DIR", &flags->directory, verb.directory);
  AddOutputOption(command, &flags->format);
  command->Examples(verb.example);
  const auto run = verb.run;
  command->Runs([flags, run] {
    if (!CheckOutputFormat(flags->format)) return static_cast<int>(kExitUsage);
    const absl::Status status = run(*flags);
    return status.ok() ? static_cast<int>(kExitGood) : ReportError(status);
  });
}

}  // namespace

void AddCheckpointCommand(CommandLine* line) {
  Command* command =
      line->Add("checkpoint", "lists, shows and checks checkpoints; needs no driver");
  constexpr char kOne[] = "a checkpoint, or the folder of several: the newest";
  AddVerb(command, {"list", "lists the complete checkpoints in a folder, newest first",
                    "the folder", "megascale checkpoint list out/checkpoints", List});
  AddVerb(command, {"inspect", "shows what a checkpoint holds", kOne,
                    "megascale checkpoint inspect out/checkpoints\n"
                    "megascale checkpoint inspect out/checkpoints/step-00000400-attempt-1 -o json",
                    Inspect});
  AddVerb(command,
          {"digest", "prints one hash over weights, optimizer state, step and data position", kOne,
           "megascale checkpoint digest out/checkpoints", Digest});
  AddVerb(command, {"verify", "compares the checksum of every file; exits 1 if one differs", kOne,
                    "megascale checkpoint verify out/checkpoints", Verify});
  AddImport(command);
  AddExport(command, kOne);
}

}  // namespace megascale::cli
