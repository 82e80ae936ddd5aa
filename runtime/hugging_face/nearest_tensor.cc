#include "runtime/hugging_face/nearest_tensor.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/text/nearest_name.h"
#include "runtime/base/text/printable.h"
#include "runtime/hugging_face/config/json_fields.h"

namespace megascale::hugging_face {
namespace {

constexpr size_t kComparedMax = 10'000;  // names

// What puts a prefix before all names, and how to save the model without it.
constexpr std::pair<absl::string_view, absl::string_view> kWrappers[] = {
    {"base_model.model.", "PEFT saves models so; merge the adapter and save the model"},
    {"_orig_mod.", "torch.compile saves models so; save the model that was compiled"},
    {"module.", "DistributedDataParallel saves models so; save its module"},
    {"_fsdp_wrapped_module.", "FSDP saves models so; save the whole model"},
};

std::string AdviceFor(absl::string_view prefix) {
  for (const auto& [wrapper, advice] : kWrappers) {
    if (absl::StrContains(prefix, wrapper)) return std::string(advice);
  }
  return absl::StrCat("expected names without ", base::Printable(prefix, kShownBytesMax));
}

std::string Found(absl::string_view name, absl::string_view advice) {
  return absl::StrCat("; it has ", base::Printable(name, kShownBytesMax), ": ", advice);
}

}  // namespace

std::string NearestTensor(absl::string_view name,
                          const std::map<std::string, StoredTensor>& tensors) {
  for (const auto& [found, tensor] : tensors) {
    absl::string_view prefix = found;
    if (absl::ConsumeSuffix(&prefix, name) && absl::EndsWith(prefix, ".")) {
      return Found(found, AdviceFor(prefix));
    }
  }
  const size_t dot = name.find('.');
  const absl::string_view without = name.substr(dot + 1);
  for (const auto& [found, tensor] : tensors) {
    absl::string_view prefix = found;
    if (found == without ||
        (absl::ConsumeSuffix(&prefix, without) && absl::EndsWith(prefix, "."))) {
      return Found(found, absl::StrCat("expected names that begin with ", name.substr(0, dot + 1),
                                       ", as a model with its output matrix has them"));
    }
  }
  if (tensors.size() > kComparedMax) return "";
  std::vector<std::string> known;
  for (const auto& [found, tensor] : tensors) known.push_back(found);
  const std::string nearest = base::NearestName(name, known);
  return nearest.empty() ? "" : Found(nearest, "the nearest name");
}

}  // namespace megascale::hugging_face
