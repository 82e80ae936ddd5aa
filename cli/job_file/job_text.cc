#include "cli/job_file/job_text.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/job_file/schema.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "runtime/base/status.h"
#include "runtime/base/text/nearest_name.h"
#include "runtime/base/text/printable.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace megascale::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using job::v1::JobSpec;

constexpr size_t kShownBytesMax = 60;
constexpr size_t kMistakesMax = 20;

std::string Quote(absl::string_view text) {
  return absl::StrCat("`", base::Printable(text, kShownBytesMax), "`");
}
// The source of a text: a file, or an option.
struct Place {
  std::string source;
  bool has_lines = true;
  JobFileFindings* findings;

  std::string At(const YAML::Mark& mark) const {
    if (!has_lines || mark.line < 0) return source;
    return absl::StrCat(source, ":", mark.line + 1, ":", mark.column + 1);
  }
  absl::Status Refuse(const YAML::Node& node, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(At(node.Mark()), ": ", what));
  }
};

std::string Join(const std::string& section, const std::string& name) {
  return section.empty() ? name : absl::StrCat(section, ".", name);
}

std::vector<std::string> ShortNames(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 1; i < type.value_count(); ++i) names.push_back(ShortName(type, i));
  return names;
}

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

// Returns the full name of a field ("train.steps") that was written in the wrong section.
std::string ElsewhereName(const std::string& name) {
  const Descriptor& job = *JobSpec::descriptor();
  if (job.FindFieldByName(name) != nullptr) return name;
  for (int i = 0; i < job.field_count(); ++i) {
    const Descriptor* section = job.field(i)->message_type();
    if (section != nullptr && section->FindFieldByName(name) != nullptr) {
      return Join(job.field(i)->name(), name);
    }
  }
  return "";
}

std::string UnknownField(const Descriptor& type, const std::string& section,
                         const std::string& name) {
  if (name == "<<") {
    return absl::StrCat(Quote(Join(section, name)),
                        " is a merge key, which job files do not have; write the fields out");
  }
  std::string nearest = base::NearestName(name, FieldNames(type));
  if (std::string elsewhere = ElsewhereName(name); !elsewhere.empty()) nearest = elsewhere;
  const std::string what = absl::StrCat(Quote(Join(section, name)), " is not a field; ");
  if (!nearest.empty()) return absl::StrCat(what, "did you mean `", nearest, "`?");
  return absl::StrCat(what, "expected one of ", absl::StrJoin(FieldNames(type), ", "));
}

std::string Found(const YAML::Node& node) {
  if (node.IsMap()) return "found a section of fields";
  if (node.IsSequence()) return "found a list";
  if (!node.IsScalar()) return "found nothing";
  return absl::StrCat("found ", Quote(node.Scalar()));
}

// The field at `path` whose value is being read into `message`.
struct Target {
  Message* message;
  const FieldDescriptor* field;
  std::string path;
};

absl::Status Expected(const Place& place, const YAML::Node& node, const Target& target,
                      absl::string_view what) {
  return place.Refuse(node, absl::StrCat(Quote(target.path), " expects ", what, ", ", Found(node)));
}

absl::Status SetEnum(const Place& place, const YAML::Node& node, const Target& target) {
  const EnumDescriptor& type = *target.field->enum_type();
  const std::vector<std::string> names = ShortNames(type);
  for (size_t i = 0; i < names.size(); ++i) {
    if (node.Scalar() != names[i]) continue;
    const int value_index = static_cast<int>(i) + 1;
    target.message->GetReflection()->SetEnum(target.message, target.field, type.value(value_index));
    return absl::OkStatus();
  }
  const std::string nearest = base::NearestName(absl::AsciiStrToLower(node.Scalar()), names);
  const std::string hint = nearest.empty() ? "" : absl::StrCat("; did you mean `", nearest, "`?");
  return place.Refuse(node, absl::StrCat(Quote(target.path), " expects ",
                                         absl::StrJoin(names, " or "), ", ", Found(node), hint));
}

absl::Status SetDuration(const Place& place, const YAML::Node& node, const Target& target) {
  absl::Duration duration;
  if (!absl::ParseDuration(node.Scalar(), &duration) || duration == absl::InfiniteDuration() ||
      duration < absl::ZeroDuration()) {
    return Expected(place, node, target, "a duration such as 5s, 1m30s or 500ms");
  }
  auto* message = static_cast<google::protobuf::Duration*>(
      target.message->GetReflection()->MutableMessage(target.message, target.field));
  message->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  message->set_nanos(static_cast<int32_t>(duration / absl::Nanoseconds(1)));
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadInteger(const Place& place, const YAML::Node& node, const Target& target,
                         T* value) {
  if (absl::SimpleAtoi(node.Scalar(), value)) return absl::OkStatus();
  const std::string& text = node.Scalar();
  const bool whole = !text.empty() && text.find_first_not_of("+-0123456789") == std::string::npos;
  if (!whole) return Expected(place, node, target, "a whole number such as 40");
  const std::string range = text[0] == '-' ? absl::StrCat("least ", std::numeric_limits<T>::min())
                                           : absl::StrCat("most ", std::numeric_limits<T>::max());
  return Expected(place, node, target, absl::StrCat("a whole number of at ", range));
}

// Returns false if `text` is not a decimal number, or is so small or large that a double would be 0
// or infinite.
bool ReadNumber(const std::string& text, double* value) {
  const bool decimal = text.find_first_not_of("0123456789.eE+-") == std::string::npos;
  if (!decimal || !absl::SimpleAtod(text, value) || !std::isfinite(*value)) return false;
  const std::string digits = text.substr(0, text.find_first_of("eE"));
  return *value != 0 || digits.find_first_of("123456789") == std::string::npos;
}

absl::Status SetScalar(const Place& place, const YAML::Node& node, const Target& target) {
  const Reflection& reflection = *target.message->GetReflection();
  switch (target.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value = 0;
      RETURN_IF_ERROR(ReadInteger(place, node, target, &value));
      reflection.SetInt32(target.message, target.field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value = 0;
      RETURN_IF_ERROR(ReadInteger(place, node, target, &value));
      reflection.SetInt64(target.message, target.field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value = 0;
      RETURN_IF_ERROR(ReadInteger(place, node, target, &value));
      reflection.SetUInt64(target.message, target.field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!ReadNumber(node.Scalar(), &value)) {
        return Expected(place, node, target, "a number between 1e-300 and 1e300, or 0");
      }
      reflection.SetDouble(target.message, target.field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      if (node.Scalar() != "true" && node.Scalar() != "false") {
        return Expected(place, node, target, "true or false");
      }
      reflection.SetBool(target.message, target.field, node.Scalar() == "true");
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(place, node, target);
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(target.message, target.field, node.Scalar());
      return absl::OkStatus();
    default:
      return place.Refuse(node, absl::StrCat(Quote(target.path), " cannot be set from a job file"));
  }
}

// All lists are lists of texts; a single text counts as a list of one.
absl::Status SetList(const Place& place, const YAML::Node& node, const Target& target) {
  const Reflection& reflection = *target.message->GetReflection();
  reflection.ClearField(target.message, target.field);
  if (node.IsScalar()) {
    reflection.AddString(target.message, target.field, node.Scalar());
    return absl::OkStatus();
  }
  if (!node.IsSequence()) return Expected(place, node, target, "a list of texts");
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return Expected(place, item, target, "a list of texts");
    reflection.AddString(target.message, target.field, item.Scalar());
  }
  return absl::OkStatus();
}

absl::Status SetSection(const Place& place, const YAML::Node& node, const std::string& section,
                        Message* message);

absl::Status SetField(const Place& place, const YAML::Node& node, const Target& target) {
  place.findings->given[target.path] = place.At(node.Mark());
  if (target.field->is_repeated()) return SetList(place, node, target);
  if (IsSection(*target.field)) {
    Message* section =
        target.message->GetReflection()->MutableMessage(target.message, target.field);
    return SetSection(place, node, target.path, section);
  }
  if (!node.IsScalar()) return Expected(place, node, target, "one value");
  if (IsDuration(*target.field)) return SetDuration(place, node, target);
  return SetScalar(place, node, target);
}

// Reads a field of a section; `seen` are the names before it.
absl::Status SetPair(const Place& place, const std::pair<YAML::Node, YAML::Node>& pair,
                     const Target& section, std::set<std::string>* seen) {
  if (!pair.first.IsScalar()) {
    return place.Refuse(pair.first,
                        absl::StrCat("a field's name expects one word, ", Found(pair.first)));
  }
  const std::string& name = pair.first.Scalar();
  const Descriptor& type = *section.message->GetDescriptor();
  const FieldDescriptor* field = type.FindFieldByName(name);
  if (field == nullptr) {
    return place.Refuse(pair.first, UnknownField(type, section.path, name));
  }
  const std::string path = Join(section.path, name);
  if (!seen->insert(name).second) {
    place.findings->given.erase(path);  // which of its values is meant is not known
    return place.Refuse(pair.first, absl::StrCat(Quote(path), " is given twice"));
  }
  if (pair.second.IsNull() && !IsSection(*field)) {
    return place.Refuse(pair.first, absl::StrCat(Quote(path), " has no value"));
  }
  absl::Status set = SetField(place, pair.second, {section.message, field, path});
  if (!set.ok()) place.findings->given.erase(path);
  return set;
}

// Notes the mistakes of single fields and goes on, so that a user sees all of them at once.
absl::Status SetSection(const Place& place, const YAML::Node& node, const std::string& section,
                        Message* message) {
  if (node.IsNull()) return absl::OkStatus();
  if (!node.IsMap()) {
    return place.Refuse(node,
                        absl::StrCat(section.empty() ? "a job file" : Quote(section),
                                     " expects fields, one `name: value` a line, ", Found(node)));
  }
  std::set<std::string> seen;
  for (const auto& pair : node) {
    if (place.findings->mistakes.size() >= kMistakesMax) break;
    const absl::Status set =
        SetPair(place, {pair.first, pair.second}, {message, nullptr, section}, &seen);
    if (!set.ok()) place.findings->mistakes.emplace_back(set.message());
  }
  return absl::OkStatus();
}

// Notes where the newest document of a stream begins; its content is dropped.
class DocumentStart : public YAML::EventHandler {
 public:
  YAML::Mark mark;

  void OnDocumentStart(const YAML::Mark& begin) override { mark = begin; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Translates the library's messages into the terms of a job file.
std::string Explain(const std::string& message) {
  if (message == "illegal map value") {
    return "found a `:` where none can be; write each `name: value` on its own line, and put a "
           "text "
           "that has `: ` in it into quotes";
  }
  if (message == "unknown token") {
    return "found a character that no value begins with; put the text into quotes";
  }
  return absl::StrCat("is not YAML: ", base::Printable(message, 2 * kShownBytesMax));
}

// Reports indenting tabs itself, because the library reports them late or as another mistake.
absl::Status DescribeYamlMistake(const Place& place, const std::string& text,
                                 const YAML::Exception& mistake) {
  int line_index = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!place.has_lines || line_index > mistake.mark.line) break;
    const size_t tab = line.substr(0, line.find_first_not_of(" \t")).find('\t');
    if (tab != absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          place.source, ":", line_index + 1, ":", tab + 1,
          ": a tab indents this line; YAML indents with spaces: replace the tab by spaces"));
    }
    ++line_index;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(place.At(mistake.mark), ": ", Explain(mistake.msg)));
}

// Does not use YAML::LoadAll, which makes endless documents from a stray comma.
absl::StatusOr<YAML::Node> ParseYaml(const Place& place, const std::string& text) {
  try {
    YAML::Node first = YAML::Load(text);
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentStart second;
    if (parser.HandleNextDocument(second) && parser.HandleNextDocument(second)) {
      return absl::InvalidArgumentError(absl::StrCat(
          place.At(second.mark), ": a second YAML document begins; expected one job a file"));
    }
    return first;
  } catch (const YAML::Exception& e) {
    return DescribeYamlMistake(place, text, e);
  }
}
absl::Status CheckText(const std::string& file_name, const std::string& text) {
  if (text.size() > kJobFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ": has ", text.size(), " bytes; a job file has at most ", kJobFileBytesMax));
  }
  if (!base::IsUtf8(text) || text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": is not text; expected YAML in UTF-8, without zero bytes"));
  }
  return absl::OkStatus();
}
}  // namespace

absl::StatusOr<JobSpec> ParseJobText(const std::string& file_name, const std::string& text,
                                     JobFileFindings* findings) {
  const Place place = {file_name, /*has_lines=*/true, findings};
  RETURN_IF_ERROR(CheckText(place.source, text));
  ASSIGN_OR_RETURN(const YAML::Node root, ParseYaml(place, text));
  if (root.IsNull()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place.source, ": is empty; examples/ has job files to start from"));
  }
  JobSpec spec;
  RETURN_IF_ERROR(SetSection(place, root, "", &spec));
  return spec;
}
absl::Status ApplyOverride(const std::string& assignment, JobSpec* spec,
                           JobFileFindings* findings) {
  const Place place = {absl::StrCat("--set ", base::Printable(assignment, kShownBytesMax)),
                       /*has_lines=*/false, findings};
  RETURN_IF_ERROR(CheckText(place.source, assignment));
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(place.source, ": expected FIELD=VALUE, such as --set train.steps=100"));
  }
  ASSIGN_OR_RETURN(const YAML::Node value, ParseYaml(place, assignment.substr(equals + 1)));
  const std::vector<std::string> names = absl::StrSplit(assignment.substr(0, equals), '.');
  Message* message = spec;
  std::string section;
  for (size_t i = 0;; ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(names[i]);
    if (field == nullptr) {
      return place.Refuse(value, UnknownField(*message->GetDescriptor(), section, names[i]));
    }
    const std::string path = Join(section, names[i]);
    if (i + 1 == names.size()) {
      if (value.IsNull()) {
        return place.Refuse(value,
                            absl::StrCat(Quote(path), " has no value; expected ", path, "=VALUE"));
      }
      absl::Status set = SetField(place, value, {message, field, path});
      if (!set.ok()) findings->given.erase(path);  // what it set is not the field's value
      return set;
    }
    if (!IsSection(*field)) {
      return place.Refuse(value,
                          absl::StrCat(Quote(path), " has no fields; expected ", path, "=VALUE"));
    }
    message = message->GetReflection()->MutableMessage(message, field);
    section = path;
  }
}
absl::Status MistakesError(std::vector<std::string> mistakes) {
  if (mistakes.empty()) return absl::OkStatus();
  if (mistakes.size() >= kMistakesMax) {
    mistakes.resize(kMistakesMax);
    mistakes.push_back("there may be more mistakes");
  }
  return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
}
}  // namespace megascale::cli
