#include "cli/job_file/job_file.h"

#include <sys/stat.h>

#include <climits>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cli/job_file/job_text.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/dataset/job_tokenizer.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/kept_files.h"
#include "runtime/job/job_spec.h"
#include "runtime/job/names.h"

namespace megascale::cli {
namespace {

using job::v1::JobSpec;

void MakeAbsolute(std::string* path) {
  if (path->empty() || absl::StartsWith(*path, "/")) return;
  if (path->find("://") + 1 == path->find('/')) return;  // the rules refuse "s3://…"
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(*path, error);
  if (!error) *path = absolute.lexically_normal().string();
}
std::string FieldOf(absl::string_view refusal) {
  return std::string(refusal.substr(0, refusal.find(':')));
}

// Returns the place of the field with which `refusal` begins; for a missing field, its section's.
std::string WhereOf(absl::string_view refusal, const std::map<std::string, std::string>& given,
                    const std::string& file_name) {
  std::string path = FieldOf(refusal);
  for (;;) {
    if (const auto it = given.find(path); it != given.end()) return it->second;
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return file_name;
    path.resize(dot);
  }
}

// Adds the rules that the given fields break. A field that was left out is a mistake only if there
// is no other: it may be missing because its line could not be read, or break a rule because its
// default follows from a mistaken field. For the same reason rules about several fields need fields
// that could be read.
void AddBrokenRules(const JobSpec& spec, const std::string& file_name, JobFileFindings* findings) {
  for (const std::string& refusal :
       findings->mistakes.empty() ? job::BrokenRules(spec) : job::BrokenFieldRules(spec)) {
    const bool is_given = findings->given.count(FieldOf(refusal)) > 0;
    if (!is_given && !findings->mistakes.empty()) continue;
    findings->mistakes.push_back(
        absl::StrCat(WhereOf(refusal, findings->given, file_name), ": ", refusal));
  }
}
// Completes the model section by that of the weights from which the job starts. What cannot be read
// or contradicts them becomes a mistake.
void TakeModelFrom(const std::string& file_name, JobSpec* spec, JobFileFindings* findings) {
  MakeAbsolute(spec->mutable_model()->mutable_from());
  // The rules report a bad path, and a field that is given twice is a mistake already.
  const bool can_open = findings->given.count("model.from") > 0 &&
                        job::CheckPath("model.from", spec->model().from()).ok();
  if (!can_open) return;
  std::set<std::string> given;
  for (const auto& [field, place] : findings->given) {
    absl::string_view name = field;
    if (!absl::ConsumePrefix(&name, "model.")) continue;
    given.insert(std::string(name));
    given.insert(std::string(name.substr(0, name.find('.'))));  // `--set` names no section itself
  }
  const auto source = hugging_face::FindSource(spec->model().from());
  const auto merged = source.ok() ? hugging_face::MergeModels(*source, spec->model(), given)
                                  : absl::StatusOr<job::v1::ModelSpec>(absl::InvalidArgumentError(
                                        absl::StrCat("model.from: ", source.status().message())));
  if (merged.ok()) {
    *spec->mutable_model() = *merged;
    return;
  }
  const std::string message(merged.status().message());
  findings->mistakes.push_back(
      absl::StrCat(WhereOf(message, findings->given, file_name), ": ", message));
}

void TakeDataOptions(const JobFileOptions& options, JobSpec* spec, JobFileFindings* findings) {
  job::v1::DataSpec& data = *spec->mutable_data();
  if (!options.data_files.empty()) {
    *data.mutable_files() = {options.data_files.begin(), options.data_files.end()};
    data.clear_weights();
    findings->given["data.files"] = "--data";
  }
  if (!options.tokenizer.empty()) {
    data.set_tokenizer(options.tokenizer);
    data.clear_tokenizer_vocab_size();
    findings->given["data.tokenizer"] = "--tokenizer";
  }
  if (!options.json_field.empty()) {
    data.set_json_field(options.json_field);
    findings->given["data.json_field"] = "--json-field";
  }
  if (!options.skip_bad) return;
  data.set_skip_bad(true);
  findings->given["data.skip_bad"] = "--skip-bad";
}

// Takes the tokenizer of `model.from` if the job names none, and the model's vocabulary from the
// tokenizer. A tokenizer that cannot be used becomes a mistake.
void TakeTokenizer(const std::string& file_name, JobSpec* spec, JobFileFindings* findings) {
  job::v1::DataSpec& data = *spec->mutable_data();
  if (data.tokenizer().empty() && data.tokenizer_vocab_size() == 0 &&
      !spec->model().from().empty()) {
    const auto source = hugging_face::FindSource(spec->model().from());
    for (const std::string& folder :
         source.ok()
             ? std::vector<std::string>{source->path, hugging_face::KeptFolderOf(source->path)}
             : std::vector<std::string>()) {
      if (!data.tokenizer().empty() || !tokenizer::FindTokenizerFile(folder).ok()) continue;
      const bool is_of_job = source->is_checkpoint && folder == source->path;
      data.set_tokenizer(is_of_job ? tokenizer::TokenizerOfCheckpoint(folder).value_or(folder)
                                   : folder);
    }
  }
  // Without the rules' approval there may be no such path.
  if (!findings->mistakes.empty()) return;
  for (const std::string& refusal : job::BrokenFieldRules(*spec)) {
    if (absl::StartsWith(refusal, "data.")) return;
  }
  const absl::Status filled = data::FillVocabulary(spec);
  if (filled.ok()) return;
  const std::string message(filled.message());
  findings->mistakes.push_back(
      absl::StrCat(WhereOf(message, findings->given, file_name), ": ", message));
}
}  // namespace

absl::StatusOr<JobSpec> LoadJobText(const std::string& file_name, const std::string& text,
                                    const JobFileOptions& options) {
  JobFileFindings findings;
  ASSIGN_OR_RETURN(JobSpec spec, ParseJobText(file_name, text, &findings));
  for (const std::string& assignment : options.overrides) {
    const absl::Status set = ApplyOverride(assignment, &spec, &findings);
    if (!set.ok()) findings.mistakes.emplace_back(set.message());
  }
  TakeDataOptions(options, &spec, &findings);
  for (std::string& file : *spec.mutable_data()->mutable_files()) MakeAbsolute(&file);
  MakeAbsolute(spec.mutable_data()->mutable_token_cache());
  if (spec.data().tokenizer() != "bytes") MakeAbsolute(spec.mutable_data()->mutable_tokenizer());
  if (spec.has_checkpoint()) MakeAbsolute(spec.mutable_checkpoint()->mutable_directory());
  if (!spec.model().from().empty()) TakeModelFrom(file_name, &spec, &findings);
  TakeTokenizer(file_name, &spec, &findings);
  AddBrokenRules(spec, file_name, &findings);
  RETURN_IF_ERROR(MistakesError(std::move(findings.mistakes)));
  return job::ResolveJobSpec(spec);
}

absl::StatusOr<JobSpec> LoadJobFile(const std::string& path, const JobFileOptions& options) {
  const std::string shown = base::Printable(path, PATH_MAX);
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, ": is not a regular file; expected a YAML job file"));
  }
  absl::StatusOr<std::string> text = base::ReadFile(path, kJobFileBytesMax);
  if (absl::IsNotFound(text.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("job file ", shown, " does not exist; examples/ has job files to start from"));
  }
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("job file ", text.status().message()));
  }
  return LoadJobText(shown, *text, options);
}

}  // namespace megascale::cli
