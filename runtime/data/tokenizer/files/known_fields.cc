#include "runtime/data/tokenizer/files/known_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::tokenizer {
namespace {

constexpr size_t kShownMax = 1000;

struct Component {
  absl::string_view section;
  absl::string_view type;
  absl::string_view read;      // fields, apart from "type"
  absl::string_view harmless;  // why each one is: after the table
};
constexpr Component kComponents[] = {
    {"", "",
     "added_tokens normalizer pre_tokenizer post_processor decoder model truncation padding",
     "version"},
    {"added_tokens", "", "id content single_word lstrip rstrip normalized special", ""},
    {"normalizer", "Sequence", "normalizers", ""},
    {"normalizer", "NFC", "", ""},
    {"normalizer", "Prepend", "prepend", ""},
    {"normalizer", "Replace", "pattern content", ""},
    {"pre_tokenizer", "Sequence", "pretokenizers", ""},
    {"pre_tokenizer", "ByteLevel", "add_prefix_space use_regex", "trim_offsets"},
    {"pre_tokenizer", "Digits", "individual_digits", ""},
    {"pre_tokenizer", "Metaspace", "replacement prepend_scheme split add_prefix_space", "str_rep"},
    {"pre_tokenizer", "Split", "pattern behavior invert", ""},
    {"post_processor", "Sequence", "processors", ""},
    {"post_processor", "ByteLevel", "", "add_prefix_space trim_offsets use_regex"},
    {"post_processor", "TemplateProcessing", "single special_tokens", "pair"},
    {"post_processor", "RobertaProcessing", "sep cls", "trim_offsets add_prefix_space"},
    {"decoder", "Sequence", "decoders", ""},
    {"decoder", "ByteLevel", "", "add_prefix_space trim_offsets use_regex"},
    {"decoder", "ByteFallback", "", ""},
    {"decoder", "Fuse", "", ""},
    {"decoder", "Metaspace", "replacement prepend_scheme add_prefix_space", "split str_rep"},
    {"decoder", "Replace", "pattern content", ""},
    {"decoder", "Strip", "content start stop", ""},
    {"model", "BPE",
     "vocab merges dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
     "byte_fallback ignore_merges",
     ""},
};
// trim_offsets and add_prefix_space of what comes after the model concern offsets; use_regex and
// split there, nothing; pair, texts that come in twos; str_rep repeats replacement.

const Component* Find(absl::string_view section, absl::string_view type) {
  const auto* found = std::find_if(
      std::begin(kComponents), std::end(kComponents),
      [&](const Component& known) { return known.section == section && known.type == type; });
  return found == std::end(kComponents) ? nullptr : found;
}

bool Lists(absl::string_view fields, absl::string_view field) {
  for (const absl::string_view one : absl::StrSplit(fields, ' ', absl::SkipEmpty())) {
    if (one == field) return true;
  }
  return false;
}

class FieldWalk {
 public:
  std::vector<std::string> Walk(const nlohmann::json& file) {
    Object("", "", "", file);
    if (!file.is_object()) return std::move(unknown_);
    if (const auto added = file.find("added_tokens"); added != file.end() && added->is_array()) {
      size_t index = 0;
      for (const nlohmann::json& token : *added) {
        Object("added_tokens", "", absl::StrCat("added_tokens[", index++, "]"), token);
      }
    }
    for (const char* section : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
      if (const auto found = file.find(section); found != file.end())
        Walk(section, section, *found);
    }
    if (const auto model = file.find("model"); model != file.end()) {
      Object("model", "BPE", "model", *model);
    }
    return std::move(unknown_);
  }

 private:
  // A component, and those in it if it is a Sequence.
  void Walk(absl::string_view section, const std::string& path, const nlohmann::json& component) {
    if (!component.is_object()) return;
    const auto type = component.find("type");
    if (type == component.end() || !type->is_string()) return;
    const auto& name = type->get_ref<const std::string&>();
    Object(section, name, path, component);
    const Component* known = Find(section, name);
    if (name != "Sequence" || known == nullptr) return;
    const std::string list(known->read);
    const auto elements = component.find(list);
    if (elements == component.end() || !elements->is_array()) return;
    size_t index = 0;
    for (const nlohmann::json& element : *elements) {
      Walk(section, absl::StrCat(path, ".", list, "[", index++, "]"), element);
    }
  }

  void Object(absl::string_view section, absl::string_view type, const std::string& path,
              const nlohmann::json& object) {
    if (!object.is_object() || Find(section, type) == nullptr) return;
    for (const auto& [field, value] : object.items()) {
      base::CountWork(1);
      if (unknown_.size() >= kShownMax) return;
      if (IsKnownField(section, type, field)) continue;
      const std::string shown = base::Printable(field, 60);
      unknown_.push_back(path.empty() ? shown : absl::StrCat(path, ".", shown));
    }
  }

  std::vector<std::string> unknown_;
};

}  // namespace

bool IsKnownField(absl::string_view section, absl::string_view type, absl::string_view field) {
  const Component* known = Find(section, type);
  if (known == nullptr) return false;
  const bool has_type = !type.empty() && field == "type";
  return has_type || Lists(known->read, field) || Lists(known->harmless, field);
}

std::vector<std::string> UnknownFieldsOf(const nlohmann::json& file) {
  return FieldWalk().Walk(file);
}

}  // namespace megascale::tokenizer
