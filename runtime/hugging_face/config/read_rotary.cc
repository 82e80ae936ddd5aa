#include "runtime/hugging_face/config/read_rotary.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {
namespace {

using job::v1::ModelSpec;
using job::v1::RopeScaling;
using RotaryJson = nlohmann::json;

constexpr char kOriginal[] = "original_max_position_embeddings";

// The attention factor of YaRN for a factor: 0.1 × mscale × ln(factor) + 1.
double AttentionFactor(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

void ReadYarn(JsonFields* section, RopeScaling* rope) {
  rope->set_rope_type(job::v1::ROPE_TYPE_YARN);
  rope->set_beta_fast(section->Number("beta_fast", 32));
  rope->set_beta_slow(section->Number("beta_slow", 1));
  for (const char* name : {"beta_fast", "beta_slow"}) {
    if (section->Number(name, 1) < 0) section->Refuse(name, "a number of at least 0");
  }
  if (!section->Flag("truncate", true)) rope->set_truncate(false);
  const double mscale = section->Number("mscale", 0);
  const double of_all = section->Number("mscale_all_dim", 0);
  if (section->Has("attention_factor")) {
    rope->set_attention_factor(section->Number("attention_factor", 0));
    if (!(rope->attention_factor() > 0)) {
      section->Refuse("attention_factor", "a number of more than 0");
    }
  } else if (mscale != 0 && of_all != 0) {
    rope->set_attention_factor(AttentionFactor(rope->factor(), mscale) /
                               AttentionFactor(rope->factor(), of_all));
    if (!(rope->attention_factor() > 0) || !std::isfinite(rope->attention_factor())) {
      section->Refuse("mscale", "a number that gives a finite attention factor of more than 0");
    }
  }
}

void ReadLlama3(JsonFields* section, RopeScaling* rope) {
  rope->set_rope_type(job::v1::ROPE_TYPE_LLAMA3);
  rope->set_low_freq_factor(section->Number("low_freq_factor", 1));
  rope->set_high_freq_factor(section->Number("high_freq_factor", 4));
  if (!(rope->low_freq_factor() > 0)) {
    section->Refuse("low_freq_factor", "a number of more than 0");
  }
  if (!(rope->high_freq_factor() > rope->low_freq_factor())) {
    section->Refuse("high_freq_factor",
                    absl::StrCat("more than low_freq_factor = ", rope->low_freq_factor()));
  }
}

// Reads the longest sequence of pre-training: from the section, or from beside it.
void ReadOriginal(JsonFields* fields, JsonFields* section, ModelSpec* model) {
  const int beside = fields->Size(kOriginal, model->max_position_embeddings());
  const int found = section->Size(kOriginal, beside);
  model->mutable_rope_scaling()->set_original_max_position_embeddings(found);
  if (fields->Has(kOriginal) && found != beside) {
    section->Refuse(kOriginal, absl::StrCat(beside, ", as the field of this name beside it says"));
  }
}

// Returns the type of a section. "type" is the older name.
std::string TypeOf(JsonFields* section) {
  const std::string older = section->Text("type", "default");
  std::string type = section->Text("rope_type", older);
  if (section->Has("type") && type != older) {
    section->Refuse("rope_type", absl::StrCat(older, ", as type says"));
  }
  return type;
}

void ReadScaling(JsonFields* fields, JsonFields* section, ModelSpec* model) {
  const std::string type = TypeOf(section);
  model->clear_rope_scaling();
  if (type == "default") return;
  RopeScaling* rope = model->mutable_rope_scaling();
  rope->set_factor(section->Number("factor", 0));
  if (type == "linear") {
    rope->set_rope_type(job::v1::ROPE_TYPE_LINEAR);
  } else if (type == "llama3") {
    ReadLlama3(section, rope);
  } else if (type == "yarn") {
    ReadYarn(section, rope);
  } else {
    section->Refuse(section->Has("rope_type") ? "rope_type" : "type",
                    "default, linear, llama3 or yarn");
    return;
  }
  if (!(rope->factor() >= 1)) section->Refuse("factor", "a number of at least 1");
  if (type != "linear") ReadOriginal(fields, section, model);
}

// Reads one of the sections; what it leaves out is in the fields beside it.
void ReadSection(const RotaryNames& names, const char* name, JsonFields* fields, ModelSpec* model) {
  const RotaryJson* object = fields->Object(name);
  if (object == nullptr || object->empty()) return;
  JsonFields section(*object, fields->file(), absl::StrCat(name, "."));
  for (const char* layers : {model::kFullAttention, model::kSlidingAttention}) {
    if (section.Has(layers)) {
      section.Refuse(layers, "one set of frequencies, since all layers have the same here");
    }
  }
  model->set_rope_theta(section.Number("rope_theta", model->rope_theta()));
  const double part = names.part == nullptr ? 1 : model->partial_rotary_factor();
  const double found = section.Number("partial_rotary_factor", part);
  if (names.part != nullptr) model->set_partial_rotary_factor(found);
  if (names.part == nullptr && found != 1) {
    section.Refuse("partial_rotary_factor", "1, since this family turns whole heads");
  }
  ReadScaling(fields, &section, model);
  if (!section.status().ok()) fields->Keep(section.status());
}

std::string ScalingText(const ModelSpec& model) {
  return model.has_rope_scaling() ? absl::StrCat("{", model.rope_scaling().ShortDebugString(), "}")
                                  : "no scaling";
}

// Refuses two sections that differ. `transformers` 5 reads rope_scaling alone then.
void RequireEqualSections(const ModelSpec& older, const ModelSpec& newer, JsonFields* fields) {
  std::string found = ScalingText(older);
  std::string other = ScalingText(newer);
  if (found == other && older.rope_theta() != newer.rope_theta()) {
    found = absl::StrCat("theta ", older.rope_theta());
    other = absl::StrCat("theta ", newer.rope_theta());
  }
  if (found == other) return;
  fields->Keep(absl::InvalidArgumentError(absl::StrCat(fields->file(), ": rope_scaling has ", found,
                                                       ", rope_parameters has ", other,
                                                       ": expected one of them, or equal ones")));
}

bool HasSection(const char* name, JsonFields* fields) {
  const RotaryJson* object = fields->Object(name);
  return object != nullptr && !object->empty();
}

// Refuses a field that means something in other families, unless it says the same.
void RequireSame(const char* name, double used, JsonFields* fields) {
  if (fields->Number(name, used) != used) fields->Refuse(name, absl::StrCat(used));
}

}  // namespace

void ReadRotary(const RotaryNames& names, JsonFields* fields, ModelSpec* model) {
  model->set_position_embedding(job::v1::POSITION_EMBEDDING_ROTARY);
  model->set_rope_theta(fields->Number(names.theta, 10000));
  if (names.part != nullptr) model->set_partial_rotary_factor(fields->Number(names.part, 0.25));
  const ModelSpec beside = *model;
  ReadSection(names, "rope_scaling", fields, model);
  const ModelSpec older = *model;
  if (HasSection("rope_parameters", fields)) {
    *model = beside;
    ReadSection(names, "rope_parameters", fields, model);
  }
  const bool has_older = HasSection("rope_scaling", fields);
  if (has_older && HasSection("rope_parameters", fields)) {
    RequireEqualSections(older, *model, fields);
  }
  if (has_older && fields->Has(names.theta) && older.rope_theta() != beside.rope_theta()) {
    fields->Refuse(names.theta,
                   absl::StrCat(older.rope_theta(), ", as rope_scaling.rope_theta says"));
  }
  if (!(model->rope_theta() >= 1)) fields->Refuse(names.theta, "a number of at least 1");
  if (names.part != nullptr) RequireSame("rope_theta", model->rope_theta(), fields);
  RequireSame("partial_rotary_factor", names.part == nullptr ? 1 : model->partial_rotary_factor(),
              fields);
}

}  // namespace megascale::hugging_face
