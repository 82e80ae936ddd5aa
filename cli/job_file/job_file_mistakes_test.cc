// Makes every kind of mistake in every field of the job file. It walks the schema, so that new
// fields are tested at once. Each mistake must give one line with the place, the field, the value
// found and the value expected.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/job_file/job_file.h"
#include "cli/job_file/testing/test_job_text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "runtime/base/text/nearest_name.h"

namespace megascale::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using job::v1::JobSpec;

// The rest of a valid job, as options, so that the file under test holds one field alone.
const std::vector<std::string>& RestOfTheJob() {
  static const auto* const rest = new std::vector<std::string>{"name=small",
                                                               "model.hidden_size=64",
                                                               "model.num_hidden_layers=2",
                                                               "model.num_attention_heads=4",
                                                               "data.files=[/text]",
                                                               "train.steps=10",
                                                               "train.seq_length=32",
                                                               "train.global_batch_size=8",
                                                               "train.micro_batch_size=2"};
  return *rest;
}

bool IsDuration(const FieldDescriptor& field) {
  return field.message_type() != nullptr &&
         field.message_type()->full_name() == "google.protobuf.Duration";
}

bool IsSection(const FieldDescriptor& field) {
  return field.message_type() != nullptr && !IsDuration(field);
}

bool IsInteger(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
         field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
         field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
}

bool IsNumber(const FieldDescriptor& field) {
  return IsInteger(field) || field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
}

struct Field {
  const FieldDescriptor* descriptor;
  std::vector<const FieldDescriptor*> sections;  // from the outermost

  std::string path() const {
    std::string joined;
    for (const FieldDescriptor* section : sections) absl::StrAppend(&joined, section->name(), ".");
    return joined + descriptor->name();
  }
  std::string indent() const { return std::string(2 * sections.size(), ' '); }
  // Returns a file that has only this field, under the given name.
  std::string Yaml(const std::string& name, const std::string& value) const {
    std::string yaml;
    std::string indent;
    for (const FieldDescriptor* section : sections) {
      absl::StrAppend(&yaml, indent, section->name(), ":\n");
      indent += "  ";
    }
    return absl::StrCat(yaml, indent, name, ":", value.empty() ? "" : " ", value, "\n");
  }
  std::string Yaml(const std::string& value) const { return Yaml(descriptor->name(), value); }
  int line() const { return static_cast<int>(sections.size()) + 1; }
  int key_column() const { return static_cast<int>(indent().size()) + 1; }
  int value_column() const {
    return key_column() + static_cast<int>(descriptor->name().size()) + 2;
  }
  std::string KeyPlace() const {
    return absl::StrCat("job.yaml:", line(), ":", key_column(), ": ");
  }
  std::string ValuePlace() const {
    return absl::StrCat("job.yaml:", line(), ":", value_column(), ": ");
  }
};

void Collect(const Descriptor& type, const std::vector<const FieldDescriptor*>& sections,
             std::vector<Field>* fields) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    fields->push_back({field, sections});
    if (!IsSection(*field)) continue;
    std::vector<const FieldDescriptor*> inner = sections;
    inner.push_back(field);
    Collect(*field->message_type(), inner, fields);
  }
}

std::vector<Field> AllFields() {
  std::vector<Field> fields;
  Collect(*JobSpec::descriptor(), {}, &fields);
  return fields;
}

std::vector<Field> FieldsThat(const std::function<bool(const FieldDescriptor&)>& condition) {
  std::vector<Field> fields = AllFields();
  fields.erase(std::remove_if(fields.begin(), fields.end(),
                              [&](const Field& field) { return !condition(*field.descriptor); }),
               fields.end());
  return fields;
}

// Returns the error for a file that must be refused.
std::string RefusalOf(const std::string& yaml) {
  JobFileOptions options;
  // Fields in the file are not given again.
  for (const std::string& assignment : RestOfTheJob()) {
    const std::string name = assignment.substr(0, assignment.find('='));
    const std::string last = name.substr(name.rfind('.') + 1);
    const bool given = absl::StrContains(yaml, absl::StrCat(" ", last, ":")) ||
                       absl::StrContains(yaml, absl::StrCat("{", last, ":")) ||
                       absl::StartsWith(yaml, absl::StrCat(last, ":"));
    if (!given) options.overrides.push_back(assignment);
  }
  const auto spec = LoadJobText("job.yaml", yaml, options);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << yaml;
  const std::string line(spec.status().message());
  EXPECT_FALSE(std::any_of(line.begin(), line.end(), [](char c) { return c >= 0 && c < ' '; }))
      << line;
  EXPECT_LE(line.size(), 400u) << line;
  return line;
}

void ExpectStarts(const std::string& line, const std::string& start) {
  EXPECT_TRUE(absl::StartsWith(line, start)) << "line: " << line << "\nexpected: " << start;
}

void ExpectSays(const std::string& line, const std::string& words) {
  EXPECT_TRUE(absl::StrContains(line, words)) << "line: " << line << "\nexpected: " << words;
}

TEST(JobFileMistakesTest, AllMistakesOfAFileAreToldAtOnce) {
  const std::string yaml =
      "name: x\nmodle:\n  hidden_size: 3\ntrain:\n  steps: many\n  seq_length: -5\noptimizer:\n"
      "  lr: 200\n  lr: 2\n  min_lr: 300\nfault:\n  restart_backof: 1s\n";
  const auto spec = LoadJobText("job.yaml", yaml, {{"train.sed=3"}, {}});
  EXPECT_EQ(std::string(spec.status().message()),
            "job.yaml:2:1: `modle` is not a field; did you mean `model`?\n"
            "job.yaml:5:10: `train.steps` expects a whole number such as 40, found `many`\n"
            "job.yaml:9:3: `optimizer.lr` is given twice\n"
            "job.yaml:12:3: `fault.restart_backof` is not a field; did you mean "
            "`restart_backoff`?\n"
            "--set train.sed=3: `train.sed` is not a field; did you mean `seed`?\n"
            "job.yaml:6:15: train.seq_length: -5 is out of range; expected 1 to 1048576\n"
            "job.yaml:10:11: optimizer.min_lr: 300 is out of range; expected more than 0 and less "
            "than 100");
}

TEST(JobFileMistakesTest, AMistakenOverrideIsOneMistake) {
  const auto spec = LoadJobText("job.yaml", "name: x\ndata: {files: [/etc/hostname]}\n",
                                {{"train.steps=1e3", "data.files={a: b}"}, {}});
  const std::string text(spec.status().message());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_FALSE(absl::StrContains(text, "is missing")) << text;
}

TEST(JobFileMistakesTest, AFileWithoutEndOfMistakesIsCut) {
  std::string yaml;
  for (int i = 0; i < 30; ++i) absl::StrAppend(&yaml, "field", i, ": 1\n");
  const std::string text(ReadText(yaml).status().message());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
  EXPECT_TRUE(absl::EndsWith(text, "\nthere may be more mistakes")) << text;
}

TEST(JobFileMistakesTest, TheSchemaHasOnlyKindsOfFieldsThatAreUnderTest) {
  EXPECT_GE(AllFields().size(), 50u);
  for (const Field& field : AllFields()) {
    const FieldDescriptor& descriptor = *field.descriptor;
    EXPECT_TRUE(!descriptor.is_repeated() ||
                descriptor.cpp_type() == FieldDescriptor::CPPTYPE_STRING)
        << field.path() << ": lists are of texts";
    EXPECT_TRUE(descriptor.is_repeated() || IsSection(descriptor) || IsDuration(descriptor) ||
                IsNumber(descriptor) || descriptor.cpp_type() == FieldDescriptor::CPPTYPE_BOOL ||
                descriptor.cpp_type() == FieldDescriptor::CPPTYPE_ENUM ||
                descriptor.cpp_type() == FieldDescriptor::CPPTYPE_STRING)
        << field.path();
  }
}

TEST(JobFileMistakesTest, AMisspeltFieldIsAnsweredWithTheNearest) {
  for (const Field& field : AllFields()) {
    const std::string& name = field.descriptor->name();
    const std::string wrong = name.substr(0, name.size() - 1) + "q";
    const std::string line = RefusalOf(field.Yaml(wrong, "1"));
    const std::string path = field.path();
    const std::string wrong_path = path.substr(0, path.size() - 1) + "q";
    ExpectStarts(
        line, absl::StrCat(field.KeyPlace(), "`", wrong_path, "` is not a field; did you mean `"));
    const size_t begin = line.find("mean `") + 6;
    const std::string nearest = line.substr(begin, line.find('`', begin) - begin);
    EXPECT_EQ(base::EditDistance(nearest, wrong), 1) << line;
  }
}

TEST(JobFileMistakesTest, AMapOrAListWhereAValueBelongsIsNamed) {
  for (const Field& field : FieldsThat([](const auto& f) { return !IsSection(f); })) {
    std::vector<std::string> wrong = {"{a: 1}"};
    if (!field.descriptor->is_repeated()) wrong.push_back("[1, 2]");
    for (const std::string& value : wrong) {
      const std::string line = RefusalOf(field.Yaml(value));
      ExpectStarts(line, absl::StrCat(field.ValuePlace(), "`", field.path(), "` expects "));
      ExpectSays(line, value[0] == '{' ? ", found a section of fields" : ", found a list");
    }
  }
  for (const Field& field : FieldsThat([](const auto& f) { return f.is_repeated(); })) {
    const std::string line = RefusalOf(field.Yaml("[/a, {b: c}]"));
    ExpectSays(line, absl::StrCat("`", field.path(), "` expects a list of texts, found a section"));
  }
}

TEST(JobFileMistakesTest, AValueOrAListWhereASectionBelongsIsNamed) {
  for (const Field& field : FieldsThat(IsSection)) {
    for (const std::string& value : {std::string("5"), std::string("[1]"), std::string("big")}) {
      ExpectStarts(RefusalOf(field.Yaml(value)),
                   absl::StrCat(field.ValuePlace(), "`", field.path(),
                                "` expects fields, one `name: value` a line, found "));
    }
  }
}

TEST(JobFileMistakesTest, ATextWhereANumberBelongsIsNamed) {
  for (const Field& field : FieldsThat([](const auto& f) {
         return IsNumber(f) || IsDuration(f) || f.cpp_type() == FieldDescriptor::CPPTYPE_BOOL ||
                f.cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
       })) {
    for (const std::string& value : {std::string("zzzz"), std::string("\"\""), std::string("12x"),
                                     std::string("0x10"), std::string("1_000")}) {
      const std::string line = RefusalOf(field.Yaml(value));
      ExpectStarts(line, absl::StrCat(field.ValuePlace(), "`", field.path(), "` expects "));
      const std::string bare = value == "\"\"" ? "" : value;
      ExpectSays(line, absl::StrCat(", found `", bare, "`"));
    }
  }
}

TEST(JobFileMistakesTest, ANumberThatIsNoneOfTheFieldsIsNamed) {
  for (const Field& field : FieldsThat(IsNumber)) {
    std::vector<std::string> wrong = {
        "nan", ".nan", "inf", "-.inf", "1e400", "-1e400", "99999999999999999999999999x"};
    if (IsInteger(*field.descriptor)) {
      for (const char* value : {"0.5", "1e3", "18446744073709551616", "-9223372036854775809"}) {
        wrong.push_back(value);
      }
    } else {
      wrong.push_back("1e-400");  // would be 0, which stands for the default
    }
    for (const std::string& value : wrong) {
      const std::string line = RefusalOf(field.Yaml(value));
      ExpectStarts(line, absl::StrCat(field.ValuePlace(), "`", field.path(), "` expects a "));
      ExpectSays(line, absl::StrCat(", found `", value, "`"));
    }
  }
}

// The field's type can hold the number, but a rule forbids it.
TEST(JobFileMistakesTest, ANumberOutOfRangeIsNamedWithItsPlaceAndTheRange) {
  for (const Field& field : FieldsThat(IsNumber)) {
    if (field.path() == "train.seed") continue;  // every value of the type is a seed
    std::vector<std::string> wrong = {"-1", "-2147483648", "2147483647", "1000000000"};
    if (field.descriptor->cpp_type() != FieldDescriptor::CPPTYPE_INT32) {
      wrong = {"-1", "-2147483648", "9223372036854775807", "1000000000000000000"};
    }
    if (field.path() == "priority") wrong[0] = "-1001";  // it may be below 0
    for (const std::string& value : wrong) {
      const std::string line = RefusalOf(field.Yaml(value));
      ExpectStarts(line, absl::StrCat(field.ValuePlace(), field.path(), ": "));
      ExpectSays(line, "expected ");
      if (IsInteger(*field.descriptor)) ExpectSays(line, value);
    }
  }
  ExpectStarts(RefusalOf("train:\n  seed: -1\n"),
               "job.yaml:2:9: `train.seed` expects a whole number of at least 0, found `-1`");
}

TEST(JobFileMistakesTest, ADurationOutOfRangeIsNamedWithItsPlaceAndTheRange) {
  for (const Field& field : FieldsThat(IsDuration)) {
    for (const std::string& value : {std::string("0s"), std::string("2ns"), std::string("169h"),
                                     std::string("9223372036854775807s")}) {
      const std::string line = RefusalOf(field.Yaml(value));
      ExpectStarts(line, absl::StrCat(field.ValuePlace(), field.path(), ": "));
      ExpectSays(line, "is out of range; expected ");
      ExpectSays(line, "s to 168h");
    }
    for (const std::string& value : {std::string("-5s"), std::string("5"), std::string("inf"),
                                     std::string("1e400s"), std::string("5 s")}) {
      ExpectStarts(
          RefusalOf(field.Yaml(value)),
          absl::StrCat(field.ValuePlace(), "`", field.path(),
                       "` expects a duration such as 5s, 1m30s or 500ms, found `", value, "`"));
    }
  }
}

TEST(JobFileMistakesTest, AFieldThatIsGivenTwiceIsNamed) {
  for (const Field& field : AllFields()) {
    std::string value = "a";
    if (IsSection(*field.descriptor)) value = "{}";
    if (IsNumber(*field.descriptor)) value = "1";
    if (IsDuration(*field.descriptor)) value = "1s";
    if (field.descriptor->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) value = "true";
    if (field.descriptor->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      const std::string& zero = field.descriptor->enum_type()->value(0)->name();
      value = field.descriptor->enum_type()->value(1)->name().substr(zero.size() - 11);
      std::transform(value.begin(), value.end(), value.begin(), ::tolower);
    }
    const std::string twice = absl::StrCat(field.Yaml(value), field.indent(),
                                           field.descriptor->name(), ": ", value, "\n");
    ExpectStarts(RefusalOf(twice),
                 absl::StrCat("job.yaml:", field.line() + 1, ":", field.key_column(), ": `",
                              field.path(), "` is given twice"));
  }
}

TEST(JobFileMistakesTest, AFieldWithoutAValueIsNamed) {
  for (const Field& field : FieldsThat([](const auto& f) { return !IsSection(f); })) {
    for (const std::string& nothing : {std::string(), std::string("null"), std::string("~")}) {
      ExpectStarts(RefusalOf(field.Yaml(nothing)),
                   absl::StrCat(field.KeyPlace(), "`", field.path(), "` has no value"));
    }
  }
}

TEST(JobFileMistakesTest, AbsurdlyLongValuesAreCut) {
  for (const Field& field : FieldsThat([](const auto& f) { return !IsSection(f); })) {
    const std::string line = RefusalOf(field.Yaml(std::string(50'000, '7')));
    ExpectStarts(line, "job.yaml:");
    ExpectSays(line, field.path());
  }
}

TEST(JobFileMistakesTest, OptionsAreCheckedLikeTheFile) {
  for (const Field& field : FieldsThat(IsNumber)) {
    for (const std::string& value : {std::string("zzzz"), std::string("1e400"), std::string("[1]"),
                                     std::string("{a: 1}"), std::string("")}) {
      const std::string option = absl::StrCat(field.path(), "=", value);
      JobSpec spec;
      const absl::Status status = Apply(option, &spec);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << option;
      ExpectStarts(std::string(status.message()),
                   absl::StrCat("--set ", option, ": `", field.path(), "` "));
    }
    if (field.path() == "train.seed" || field.path() == "priority") continue;  // may be below 0
    JobFileOptions options;
    options.overrides = RestOfTheJob();
    options.overrides.push_back(absl::StrCat(field.path(), "=-1"));
    const auto spec = LoadJobText("job.yaml", "{}", options);
    ExpectStarts(
        std::string(spec.status().message()),
        absl::StrCat("--set ", field.path(), "=-1: ", field.path(), ": -1 is out of range"));
  }
}

// Errors about rules between fields name the place of the field that they begin with.
TEST(JobFileMistakesTest, RulesBetweenFieldsNameThePlaceAndTheSum) {
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"train:\n  global_batch_size: 9\n",
       "job.yaml:2:22: train.global_batch_size: 9 is not a multiple of data_parallel_size × "
       "micro_batch_size = 1 × 2 = 2"},
      {"model:\n  num_attention_heads: 5\n  hidden_size: 64\n",
       "job.yaml:3:16: model.hidden_size: 64 is not a multiple of model.num_attention_heads = 5 "
       "(64 "
       "= 12 × 5 + 4)"},
      {"model:\n  num_key_value_heads: 3\n  num_attention_heads: 4\n",
       "job.yaml:3:24: model.num_attention_heads: 4 is not a multiple of model.num_key_value_heads "
       "= 3 (4 = 1 × 3 + 1)"},
      {"model:\n  num_attention_heads: 8\n  head_dim: 65536\n",
       "job.yaml:3:13: model.head_dim: num_attention_heads × head_dim = 8 × 65536 = 524288 is "
       "absurd; expected at most 262144"},
      {"train:\n  seq_length: 64\nmodel:\n  max_position_embeddings: 32\n",
       "job.yaml:2:15: train.seq_length: 64 is more than model.max_position_embeddings = 32"},
      {"optimizer:\n  warmup_steps: 11\n",
       "job.yaml:2:17: optimizer.warmup_steps: 11 is more than train.steps = 10"},
      {"optimizer: {schedule: wsd, decay_steps: 11}\n",
       "job.yaml:1:41: optimizer.decay_steps: 11 is more than the steps behind the warm-up, "
       "train.steps - optimizer.warmup_steps = 10"},
      {"optimizer: {min_lr: 1}\n",
       "job.yaml:1:21: optimizer.min_lr: 1 is more than optimizer.lr = 0.0003"},
      {"parallel:\n  pipeline_model_parallel_size: 3\n",
       "job.yaml:2:33: parallel.pipeline_model_parallel_size: 3 is more than "
       "model.num_hidden_layers = 2; every stage needs a layer"},
      {"checkpoint:\n  keep: -1\n",
       "job.yaml:2:9: checkpoint.keep: -1 is out of range; expected 1 to 1048576"},
      {"fault:\n  heartbeat_timeout: 2ns\n",
       "job.yaml:2:22: fault.heartbeat_timeout: 2ns is out of range; expected 500ms to 168h"},
      {"fault:\n  heartbeat_interval: 6s\n  heartbeat_timeout: 5s\n",
       "job.yaml:3:22: fault.heartbeat_timeout: 5s must be longer than fault.heartbeat_interval = "
       "6s"},
      {"train: {seq_length: 1048576, micro_batch_size: 32}\n",
       "job.yaml:1:48: train.micro_batch_size: micro_batch_size × seq_length = 32 × 1048576 = "
       "33554432 tokens is absurd; expected at most 16777216"},
      {"data:\n  files: [/a, \"/b\\nc\"]\n",
       "job.yaml:2:10: data.files: '/b\\nc' has control characters; expected a path without, "
       "rename "
       "the file"},
      {"name: ../up\n",
       "job.yaml:1:7: name: '/' is not allowed; expected letters, digits, '-', '_', '.'"},
  };
  for (const auto& [yaml, says] : mistakes) {
    EXPECT_EQ(RefusalOf(yaml), says);
  }
}

TEST(JobFileMistakesTest, AMissingFieldIsNamedAtItsSection) {
  const auto spec = LoadJobText("job.yaml", "name: x\nmodel:\n  hidden_size: 64\n", {});
  EXPECT_EQ(std::string(spec.status().message()),
            "job.yaml:3:3: model.num_hidden_layers: is missing or 0; expected 1 to 1024");
  const auto bare = LoadJobText("job.yaml", "name: x\n", {});
  EXPECT_EQ(std::string(bare.status().message()),
            "job.yaml: model.hidden_size: is missing or 0; expected 1 to 65536");
}

TEST(JobFileMistakesTest, AWindowLongerThanTheSequenceIsNoMistake) {
  JobFileOptions options;
  options.overrides = RestOfTheJob();
  options.overrides.push_back("model.sliding_window=4096");
  EXPECT_TRUE(LoadJobText("job.yaml", "{}", options).ok());
}

}  // namespace
}  // namespace megascale::cli
